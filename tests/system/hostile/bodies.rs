//! Bodies without an end, by the byte and by the megabyte.

use std::{
    io::{self, Write},
    net::TcpStream,
    time::Duration,
};

use tower_outbound::{Report, body::BodyTooLarge};

use super::{
    server::{http2::*, *},
    *,
};

/// Its answer has this status and a body that never ends.
fn endless(wire: Wire, status: u16) -> String {
    match wire {
        Wire::Http1 => serve_http1(move |stream| {
            write!(stream, "HTTP/1.1 {status} x\r\ntransfer-encoding: chunked\r\n\r\n")?;
            let chunk = [b"4000\r\n", &[b'x'; 0x4000][..], b"\r\n"].concat();
            endlessly(stream, &chunk)
        }),
        Wire::Http2 => serve_http2(move |stream, id| {
            let head: &[u8] = match status {
                200 => STATUS_200,
                404 => STATUS_404,
                _ => STATUS_503,
            };
            stream.write_all(&frame(HEADERS, END_HEADERS, id, head))?;
            fill(stream, id, &[b'x'; 0x4000])
        }),
    }
}

/// Sends as much as the client has allowed: hyper's, 2 MiB for a stream and 5 MiB for a connection, so that there is less
/// left for the second and the third.
fn fill(stream: &mut TcpStream, id: u32, data: &[u8]) -> io::Result<()> {
    let window = if id == 1 { 2 << 20 } else { 1 << 20 };
    let frames = frame(DATA, 0, id, data).repeat((64 << 10) / data.len());
    for _ in 0..window / (64 << 10) {
        stream.write_all(&frames)?;
    }
    Ok(())
}

#[test]
fn of_a_failure_whose_body_never_ends_no_more_is_read_than_the_drain_allows() {
    for (wire, bound) in [(Wire::Http1, BODY1), (Wire::Http2, BODY2)] {
        let client = ready(&endless(wire, 503), wire);
        let (status, attempts) = held(&format!("{wire:?} 503, endless body"), bound, async {
            let response = client.get("/v1/latest").await.unwrap();
            (response.status(), attempts(Report::from_response(&response)))
        });
        assert_eq!((status.as_u16(), attempts), (503, 3));
    }
}

#[test]
fn a_body_that_nobody_reads_stops_at_the_window() {
    for (wire, bound) in [(Wire::Http1, BODY1), (Wire::Http2, BODY2)] {
        let client = ready(&endless(wire, 200), wire);
        let came = held(&format!("{wire:?} 200, unread"), bound, get(&client, Duration::from_millis(300)));
        assert_eq!(came.unwrap(), 200);
    }
}

#[test]
fn a_body_that_is_collected_stops_at_the_limit() {
    for (wire, bound) in [(Wire::Http1, BODY1), (Wire::Http2, BODY2)] {
        let client = ready(&endless(wire, 200), wire);
        let error = held(&format!("{wire:?} 200, collected to 64 KiB"), bound, async {
            client.get("/v1/latest").await.unwrap().into_body().collect(64 << 10).await.unwrap_err()
        });
        assert_eq!(error.downcast_ref::<BodyTooLarge>().unwrap().limit(), 64 << 10);
    }
}

#[cfg(feature = "json")]
#[test]
fn a_json_answer_stops_at_the_most_that_is_read() {
    let client = ready(&endless(Wire::Http1, 200), Wire::Http1);
    // 16 MiB in a buffer that was doubled, and for a moment the one before it.
    let error = held("Http1 200, read as JSON", 52 * MIB, async {
        client.get_json::<Vec<u8>>("/v1/latest").await.unwrap_err()
    });
    assert!(error.is_too_large(), "{error:?}");
}

#[cfg(feature = "json")]
#[test]
fn of_a_failure_that_was_asked_for_as_json_a_beginning_is_read() {
    for (wire, bound) in [(Wire::Http1, BODY1), (Wire::Http2, BODY2)] {
        let client = ready(&endless(wire, 404), wire);
        let error = held(&format!("{wire:?} 404, read as JSON"), bound, async {
            client.get_json::<Vec<u8>>("/v1/latest").await.unwrap_err()
        });
        assert_eq!(error.status().unwrap(), 404);
        assert!(error.excerpt().len() <= 1027, "{error:?}");
    }
}

/// Each of them is an entry of the stream's queue, whose room is not counted by the window.
#[test]
fn one_byte_a_frame_that_nobody_reads() {
    let url = serve_http2(|stream, id| {
        stream.write_all(&frame(HEADERS, END_HEADERS, id, STATUS_200))?;
        fill(stream, id, b"x")
    });
    let client = ready(&url, Wire::Http2);
    let came = held("Http2 200, unread, by the byte", QUEUE2, get(&client, Duration::from_secs(1)));
    assert_eq!(came.unwrap(), 200);
}

#[test]
fn empty_frames_without_an_end() {
    let url = serve_http2(|stream, id| {
        stream.write_all(&frame(HEADERS, END_HEADERS, id, STATUS_200))?;
        endlessly(stream, &frame(DATA, 0, id, &[]))
    });
    let client = ready(&url, Wire::Http2);
    let came = held("Http2 200, unread, empty frames", HEAD2, get(&client, Duration::from_millis(300)));
    assert_eq!(came.unwrap(), 200);
}

#[test]
fn endless_chunk_extensions_and_trailers() {
    for (case, start) in [("extension of a chunk", &b"1;a="[..]), ("trailers", b"1\r\nx\r\n0\r\na: ")] {
        let url = serve_http1(move |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            stream.write_all(start)?;
            endlessly(stream, b"x")
        });
        let client = ready(&url, Wire::Http1);
        let error = held(&format!("Http1 200, endless {case}"), BODY1, async {
            client.get("/v1/latest").await.unwrap().into_body().collect(64 << 10).await.unwrap_err()
        });
        assert!(!error.is::<BodyTooLarge>(), "{error:?}");
    }
}

#[test]
fn a_length_that_is_announced_and_never_comes_is_not_set_aside() {
    let url = serve_http1(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 16777216\r\n\r\nxx")?;
        silence(stream)
    });
    let client = ready(&url, Wire::Http1);
    let read = held("Http1 200, 16 MiB announced", WAITING, async {
        let body = client.get("/v1/latest").await.unwrap().into_body();
        tokio::time::timeout(Duration::from_millis(300), body.collect(64 << 20)).await.is_ok()
    });
    assert!(!read);
}
