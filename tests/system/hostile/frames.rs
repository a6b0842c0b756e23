//! Floods of HTTP/2 frames that each want an answer, or a look.

use std::{io::Write, time::Duration};

use super::{
    server::{http2::*, *},
    *,
};

/// A server that reads the client's answers to them, and one that does not: what can't be sent must not be heaped up.
#[test]
fn a_flood_of_frames_that_want_an_answer() {
    for reads in [true, false] {
        for (case, one) in [
            ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
            ("PING", frame(PING, 0, 0, b"12345678")),
            ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])),
            ("frames of an unknown kind", frame(0xfa, 0, 1, &[b'x'; 1000])),
        ] {
            let url = serve_http2(move |stream, _| {
                if reads {
                    deaf(stream)?;
                }
                endlessly(stream, &one)
            });
            let client = hasty(&url, Wire::Http2);
            let case = format!("Http2 {case}, answers {}", if reads { "read" } else { "not read" });
            timed_out(held(&case, HEAD2, get(&client, Duration::ZERO)));
        }
    }
}

#[test]
fn a_flood_of_resets_is_an_answer_for_each_attempt() {
    let url = serve_http2(|stream, id| {
        deaf(stream)?;
        stream.write_all(&frame(RST_STREAM, 0, id, &[0, 0, 0, 8]).repeat(10_000))?;
        silence(stream)
    });
    let client = hasty(&url, Wire::Http2);
    let came = held("Http2 10,000 RST_STREAM", HEAD2, get(&client, Duration::ZERO));
    assert!(came.is_err(), "{came:?}");
}
