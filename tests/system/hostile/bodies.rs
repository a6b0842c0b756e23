//! Tests endless response bodies, in large and in tiny pieces, and invalid chunked encoding.

use std::{
    io::{self, Write},
    net::TcpStream,
    time::Duration,
};

use tower_outbound::body::BodyTooLarge;

use super::{
    server::{http2::*, *},
    *,
};

/// Serves responses with this status and an endless body.
fn endless(protocol: Protocol, status: u16) -> String {
    match protocol {
        Http1 => serve_http1(move |stream| {
            write!(stream, "HTTP/1.1 {status} x\r\ntransfer-encoding: chunked\r\n\r\n")?;
            let chunk = [b"4000\r\n", &[b'x'; 0x4000][..], b"\r\n"].concat();
            write_forever(stream, &chunk)
        }),
        Http2 => serve_http2(move |stream, id| {
            let header_block: &[u8] = match status {
                200 => STATUS_200,
                404 => STATUS_404,
                _ => STATUS_503,
            };
            stream.write_all(&frame(HEADERS, END_HEADERS, id, header_block))?;
            fill_window(stream, id, &[b'x'; 0x4000])
        }),
    }
}

/// Sends as much data as hyper's flow control allows: at most 2 MiB on a stream and 5 MiB on a connection. The first
/// stream gets 2 MiB. Each later stream gets 1 MiB, so that three later streams fit into the connection's window.
fn fill_window(stream: &mut TcpStream, id: u32, data: &[u8]) -> io::Result<()> {
    let window = if id == 1 { 2 << 20 } else { 1 << 20 };
    let frames = frame(DATA, 0, id, data).repeat((64 << 10) / data.len());
    for _ in 0..window / (64 << 10) {
        stream.write_all(&frames)?;
    }
    Ok(())
}

#[test]
fn retry_drains_only_the_start_of_an_endless_error_body() {
    for (protocol, limit) in BODY_LIMITS {
        let client = preset_client(&endless(protocol, 503), protocol);
        let (status, attempts) =
            with_memory_limit(&format!("{protocol:?} 503, endless body"), limit, async {
                let response = client.get("/v1/latest").await.unwrap();
                (response.status(), attempts(response.report()))
            });
        assert_eq!((status.as_u16(), attempts), (503, 3));
    }
}

#[test]
fn flow_control_bounds_an_unread_endless_body() {
    for (protocol, limit) in BODY_LIMITS {
        let url = endless(protocol, 200);
        assert_unread("200, unread", protocol, &url, limit, Duration::from_millis(300));
    }
}

#[test]
fn body_collect_fails_when_an_endless_body_exceeds_the_limit() {
    for (protocol, limit) in BODY_LIMITS {
        let client = preset_client(&endless(protocol, 200), protocol);
        assert_collects_64_kib(&client, &format!("{protocol:?} 200, collected to 64 KiB"), limit);
    }
}

#[cfg(feature = "json")]
#[test]
fn fetch_json_stops_at_the_maximum_body_size() {
    let client = preset_client(&endless(Http1, 200), Http1);
    // While the buffer doubles, the new buffer of 32 MiB and the previous buffer of 16 MiB exist at the same time.
    let error = json_error(&client, "Http1 200, read as JSON", 52 * MIB);
    assert!(error.is_too_large(), "{error:?}");
}

#[cfg(feature = "json")]
#[test]
fn fetch_json_reads_only_an_excerpt_of_an_error_body() {
    for (protocol, limit) in BODY_LIMITS {
        let client = preset_client(&endless(protocol, 404), protocol);
        assert_excerpt(&client, &format!("{protocol:?} 404, read as JSON"), limit);
    }
}

/// h2 queues each frame in an entry that is larger than the frame's data. The entry does not count against the
/// flow-control window.
#[test]
fn unread_frames_of_one_byte_use_bounded_memory() {
    let url = serve_http2(|stream, id| {
        stream.write_all(&frame(HEADERS, END_HEADERS, id, STATUS_200))?;
        fill_window(stream, id, b"x")
    });
    let case = "200, unread, frames of one byte";
    assert_unread(case, Http2, &url, HTTP2_SMALL_FRAME_LIMIT, Duration::from_secs(1));
}

#[test]
fn endless_empty_frames_use_bounded_memory() {
    let url = serve_http2(|stream, id| {
        stream.write_all(&frame(HEADERS, END_HEADERS, id, STATUS_200))?;
        write_forever(stream, &frame(DATA, 0, id, &[]))
    });
    let case = "200, unread, empty frames";
    assert_unread(case, Http2, &url, HTTP2_HEADER_LIMIT, Duration::from_millis(300));
}

#[test]
fn endless_chunk_extensions_and_trailers_fail_the_body() {
    for (case, start) in [("chunk extension", &b"1;a="[..]), ("trailers", b"1\r\nx\r\n0\r\na: ")] {
        let url = serve_http1(move |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            stream.write_all(start)?;
            write_forever(stream, b"x")
        });
        let client = preset_client(&url, Http1);
        let error = with_memory_limit(&format!("Http1 200, endless {case}"), HTTP1_BODY_LIMIT, async {
            client.get("/v1/latest").await.unwrap().into_body().bytes_up_to(64 << 10).await.unwrap_err()
        });
        assert!(!error.is::<BodyTooLarge>(), "{error:?}");
    }
}

#[test]
fn client_allocates_nothing_for_an_announced_content_length() {
    let url = serve_http1(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 16777216\r\n\r\nxx")?;
        read_until_closed(stream)
    });
    let client = preset_client(&url, Http1);
    let read = with_memory_limit("Http1 200, 16 MiB announced", IDLE_LIMIT, async {
        let body = client.get("/v1/latest").await.unwrap().into_body();
        tokio::time::timeout(Duration::from_millis(300), body.bytes_up_to(64 << 20)).await.is_ok()
    });
    assert!(!read);
}
