//! Tests endless and oversized response headers.

use std::{fmt::Write as _, io::Write, time::Duration};

use tower_outbound::limit::LocalLimiter;

use super::{
    server::{http2::*, *},
    *,
};

#[test]
fn endless_http1_headers_fail_the_call() {
    for (case, start, piece) in [
        ("one header", &b"HTTP/1.1 200 OK\r\na: "[..], &b"x"[..]),
        ("short headers", b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
        ("headers of 16 KiB", b"HTTP/1.1 200 OK\r\n", &[b"a: ", &[b'x'; 1 << 14][..], b"\r\n"].concat()),
        ("reason phrase", b"HTTP/1.1 200 ", b"x"),
        ("bytes that are not HTTP", b"", b"\x00\xff\x16\x03garbage"),
        ("empty lines", b"", b"\r\n"),
    ] {
        let (start, piece) = (start.to_owned(), piece.to_owned());
        let url = serve_http1(move |stream| {
            stream.write_all(&start)?;
            write_forever(stream, &piece)
        });
        assert_get(&format!("endless {case}"), Http1, &url, HTTP1_HEADER_LIMIT, TransportError);
    }
}

/// No frame has the flag END_HEADERS, so every frame continues the same header block.
#[test]
fn endless_continuation_frames_fail_the_call() {
    for (case, block) in [("fields", field("a", &"x".repeat(1000))), ("empty frames", vec![])] {
        let url = serve_http2(move |stream, id| {
            discard_input(stream)?;
            stream.write_all(&frame(HEADERS, 0, id, STATUS_200))?;
            write_forever(stream, &frame(CONTINUATION, 0, id, &block))
        });
        assert_get(&format!("CONTINUATION, {case}"), Http2, &url, HTTP2_HEADER_LIMIT, TransportError);
    }
}

/// The server adds a field of 4,000 bytes to HPACK's dynamic table, and then refers to the field 12,000 times. Each
/// reference is an index of one byte.
#[test]
fn headers_that_expand_from_16_kib_to_48_mb_fail_the_call() {
    let mut block = STATUS_200.to_owned();
    block.extend([&[0x40][..], &string("a"), &string(&"x".repeat(4000))].concat());
    block.extend([0xbe; 12_000]);
    let url = serve_http2(move |stream, id| {
        discard_input(stream)?;
        stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, &block))?;
        read_until_closed(stream)
    });
    assert_get("HPACK, 48 MB in 16 KiB", Http2, &url, HTTP2_HEADER_LIMIT, TransportError);
}

/// Returns `count` members of a `RateLimit` header. Each member reports at least 5 remaining permits.
fn policies(count: usize) -> String {
    let mut list = String::new();
    for number in 0..count {
        let _ = write!(list, "\"p{number}\";r={};t=30, ", number + 5);
    }
    list.truncate(list.len() - 2);
    list
}

/// The limiter keeps the eight policies with the fewest remaining permits.
#[test]
fn limiter_applies_the_tightest_of_1000_ratelimit_policies() {
    let list = policies(1000);
    for (case, headers) in [
        ("in one header", format!("ratelimit: {list}\r\nratelimit-policy: {list}\r\n")),
        (
            "in 90 headers",
            list.split(", ").collect::<Vec<_>>().chunks(12).fold(String::new(), |mut headers, chunk| {
                let _ = write!(headers, "ratelimit: {}\r\n", chunk.join(", "));
                headers
            }),
        ),
        (
            "with dates in the year 9999",
            format!(
                "date: Fri, 31 Dec 9999 23:59:59 GMT\r\nretry-after: Fri, 31 Dec 9999 23:59:59 GMT\r\n\
                 ratelimit: {list}\r\n"
            ),
        ),
    ] {
        let url = serve_http1(move |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{headers}\r\n")
        });
        let limiter = LocalLimiter::paced_window(tower_outbound::Quota::per_minute(100).unwrap())
            .with_server_remaining();
        let client = preset_builder(&url).with_limiter(limiter.clone()).client().unwrap();
        let result = with_memory_limit(
            &format!("Http1 RateLimit, 1,000 policies {case}"),
            HTTP1_HEADER_LIMIT,
            get_status(&client, Duration::ZERO),
        );
        assert_eq!(result.unwrap(), 200);
        assert_eq!(limiter.snapshot().available, 5, "{case}");
    }
}

/// The client accepts 100 headers over HTTP/1.1, and 16 KiB of headers over HTTP/2.
#[test]
fn too_many_cookies_fail_the_call() {
    for (count, expected) in [(99, Status(200)), (101, TransportError), (10_000, TransportError)] {
        let headers = format!("set-cookie: a={}\r\n", "x".repeat(20)).repeat(count);
        let url = serve_http1(move |stream| {
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{headers}\r\n")
        });
        assert_get(&format!("{count} cookies"), Http1, &url, HTTP1_HEADER_LIMIT, expected);
    }
    for (count, expected) in [(200, Status(200)), (1_000, TransportError)] {
        let cookies = field("set-cookie", "a=xxxxxxxxxxxx").repeat(count);
        let block = [STATUS_200, &cookies].concat();
        let url = serve_http2(move |stream, id| {
            // The client accepts frames of up to 16 KiB.
            let mut pieces = block.chunks(1 << 14).peekable();
            let mut kind = HEADERS;
            while let Some(piece) = pieces.next() {
                let flags = if pieces.peek().is_none() { END_HEADERS } else { 0 };
                let flags = if kind == HEADERS { flags | END_STREAM } else { flags };
                stream.write_all(&frame(kind, flags, id, piece))?;
                kind = CONTINUATION;
            }
            Ok(())
        });
        assert_get(&format!("{count} cookies"), Http2, &url, HTTP2_HEADER_LIMIT, expected);
    }
}

/// The report does not store request ids of 64 KiB.
#[test]
fn request_ids_of_64_kib_use_bounded_memory() {
    let id = "x".repeat(64 << 10);
    let url = serve_http1(move |stream| {
        write!(stream, "HTTP/1.1 503 x\r\ncontent-length: 0\r\nx-request-id: {id}\r\n\r\n")
    });
    assert_get("503, a request id of 64 KiB", Http1, &url, HTTP1_HEADER_LIMIT, Status(503));
}
