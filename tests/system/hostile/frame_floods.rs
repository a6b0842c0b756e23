//! Tests endless HTTP/2 control frames.

use std::{io::Write, time::Duration};

use super::{
    server::{http2::*, *},
    *,
};

/// The client must process or acknowledge each of these control frames. Replies that the server does not read must not
/// accumulate in memory.
#[test]
fn control_frame_floods_end_with_the_attempt_timeout() {
    for server_reads in [true, false] {
        for (case, flood) in [
            ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
            ("PING", frame(PING, 0, 0, b"12345678")),
            ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])),
            ("frames of an unknown type", frame(0xfa, 0, 1, &[b'x'; 1000])),
        ] {
            let url = serve_http2(move |stream, _| {
                if server_reads {
                    discard_input(stream)?;
                }
                write_forever(stream, &flood)
            });
            let case = format!("{case}, replies read: {server_reads}");
            assert_get(&case, Http2, &url, HTTP2_HEADER_LIMIT, Timeout);
        }
    }
}

#[test]
fn flood_of_rst_stream_frames_fails_the_call() {
    let url = serve_http2(|stream, id| {
        discard_input(stream)?;
        stream.write_all(&frame(RST_STREAM, 0, id, &[0, 0, 0, 8]).repeat(10_000))?;
        read_until_closed(stream)
    });
    let client = short_timeout_client(&url, Http2);
    let result =
        with_memory_limit("Http2 10,000 RST_STREAM", HTTP2_HEADER_LIMIT, get_status(&client, Duration::ZERO));
    assert!(result.is_err(), "{result:?}");
}
