//! Heads without an end, and heads that are full.

use std::{fmt::Write as _, io::Write, time::Duration};

use tower_outbound::limit::TokenBucket;

use super::{
    server::{http2::*, *},
    *,
};

#[test]
fn a_head_that_never_ends() {
    for (case, start, piece) in [
        ("one header", &b"HTTP/1.1 200 OK\r\na: "[..], &b"x"[..]),
        ("short headers", b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
        ("headers of 16 KiB", b"HTTP/1.1 200 OK\r\n", &[b"a: ", &[b'x'; 1 << 14][..], b"\r\n"].concat()),
        ("reason", b"HTTP/1.1 200 ", b"x"),
        ("bytes that are no HTTP", b"", b"\x00\xff\x16\x03garbage"),
        ("empty lines", b"", b"\r\n"),
    ] {
        let (start, piece) = (start.to_owned(), piece.to_owned());
        let url = serve_http1(move |stream| {
            stream.write_all(&start)?;
            endlessly(stream, &piece)
        });
        let client = ready(&url, Wire::Http1);
        let came = held(&format!("Http1 endless {case}"), HEAD1, get(&client, Duration::ZERO));
        failed(came);
    }
}

/// A frame of headers whose end is in a frame that never comes: each goes on with the one before it.
#[test]
fn a_flood_of_continuation() {
    for (case, block) in [("fields", field("a", &"x".repeat(1000))), ("empty frames", vec![])] {
        let url = serve_http2(move |stream, id| {
            deaf(stream)?;
            stream.write_all(&frame(HEADERS, 0, id, STATUS_200))?;
            endlessly(stream, &frame(CONTINUATION, 0, id, &block))
        });
        let client = ready(&url, Wire::Http2);
        let came = held(&format!("Http2 CONTINUATION, {case}"), HEAD2, get(&client, Duration::ZERO));
        failed(came);
    }
}

/// A field of 4,000 bytes that is put in the table, and then named by one byte as often as there is room for.
#[test]
fn a_bomb_of_hpack() {
    let mut block = STATUS_200.to_owned();
    block.extend([&[0x40][..], &string("a"), &string(&"x".repeat(4000))].concat());
    block.extend([0xbe; 12_000]);
    let url = serve_http2(move |stream, id| {
        deaf(stream)?;
        stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, &block))?;
        silence(stream)
    });
    let client = ready(&url, Wire::Http2);
    failed(held("Http2 HPACK, 48 MB in 16 KiB", HEAD2, get(&client, Duration::ZERO)));
}

fn members(count: usize) -> String {
    let mut list = String::new();
    for number in 0..count {
        let _ = write!(list, "\"p{number}\";r={};t=30, ", number + 5);
    }
    list.truncate(list.len() - 2);
    list
}

/// What is kept of it is the eight policies with the least left.
#[test]
fn a_thousand_members_of_ratelimit() {
    let list = members(1000);
    for (case, head) in [
        ("in one header", format!("ratelimit: {list}\r\nratelimit-policy: {list}\r\n")),
        (
            "in 90 headers",
            list.split(", ").collect::<Vec<_>>().chunks(12).fold(String::new(), |mut head, some| {
                let _ = write!(head, "ratelimit: {}\r\n", some.join(", "));
                head
            }),
        ),
        (
            "and dates of the year 9999",
            format!(
                "date: Fri, 31 Dec 9999 23:59:59 GMT\r\nretry-after: Fri, 31 Dec 9999 23:59:59 GMT\r\n\
                 ratelimit: {list}\r\n"
            ),
        ),
    ] {
        let url =
            serve_http1(move |stream| write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{head}\r\n"));
        let preset = rates(&url);
        let client = preset.client().unwrap();
        let came =
            held(&format!("Http1 RateLimit, 1,000 members {case}"), HEAD1, get(&client, Duration::ZERO));
        assert_eq!(came.unwrap(), 200);
        let left = preset.limiter().downcast_ref::<TokenBucket>().unwrap().snapshot().available;
        assert_eq!(left, 5, "{case}");
    }
}

/// 100 headers are as many as are taken of an answer, 16 KiB of HTTP/2.
#[test]
fn a_flood_of_cookies() {
    for (count, fits) in [(99, true), (101, false), (10_000, false)] {
        let head = format!("set-cookie: a={}\r\n", "x".repeat(20)).repeat(count);
        let url =
            serve_http1(move |stream| write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{head}\r\n"));
        let client = ready(&url, Wire::Http1);
        let came = held(&format!("Http1 {count} cookies"), HEAD1, get(&client, Duration::ZERO));
        if fits { assert_eq!(came.unwrap(), 200) } else { failed(came) }
    }
    for (count, fits) in [(200, true), (1_000, false)] {
        let cookies = field("set-cookie", "a=xxxxxxxxxxxx").repeat(count);
        let block = [STATUS_200, &cookies].concat();
        let url = serve_http2(move |stream, id| {
            // In frames as large as the client takes them.
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
        let client = ready(&url, Wire::Http2);
        let came = held(&format!("Http2 {count} cookies"), HEAD2, get(&client, Duration::ZERO));
        if fits { assert_eq!(came.unwrap(), 200) } else { failed(came) }
    }
}

/// None is kept of that length.
#[test]
fn ids_of_64_kib() {
    let id = "x".repeat(64 << 10);
    let url = serve_http1(move |stream| {
        write!(stream, "HTTP/1.1 503 x\r\ncontent-length: 0\r\nx-request-id: {id}\r\n\r\n")
    });
    let client = ready(&url, Wire::Http1);
    let came = held("Http1 503, an id of 64 KiB", HEAD1, get(&client, Duration::ZERO));
    assert_eq!(came.unwrap(), 503);
}
