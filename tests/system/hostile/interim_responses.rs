//! Tests interim responses, which have a 1xx status. A server may send any number of interim responses before the final
//! response.

use std::io::Write;

use super::{
    server::{http2::*, *},
    *,
};

const EARLY_HINTS: &[u8] = b"HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n";
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

#[test]
fn client_accepts_ten_thousand_interim_responses() {
    for interim in [EARLY_HINTS, CONTINUE] {
        let url = serve_http1(move |stream| {
            stream.write_all(&interim.repeat(10_000))?;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        });
        assert_get("10,000 interim responses", Http1, &url, HTTP1_HEADER_LIMIT, Status(200));
    }
    let url = serve_http2(|stream, id| {
        discard_input(stream)?;
        stream.write_all(&frame(HEADERS, END_HEADERS, id, STATUS_103).repeat(10_000))?;
        stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, STATUS_200))?;
        read_until_closed(stream)
    });
    assert_get("10,000 interim responses", Http2, &url, HTTP2_INTERIM_LIMIT, Status(200));
}

#[test]
fn endless_interim_responses_end_with_the_attempt_timeout() {
    for interim in [EARLY_HINTS, CONTINUE] {
        let url = serve_http1(move |stream| write_forever(stream, interim));
        assert_get("endless interim responses", Http1, &url, HTTP1_HEADER_LIMIT, Timeout);
    }
    let url = serve_http2(|stream, id| {
        discard_input(stream)?;
        // The server adds the status to HPACK's dynamic table, and then sends only its index of one byte. No interim
        // response is shorter.
        stream.write_all(&frame(HEADERS, END_HEADERS, id, &[0x48, 3, b'1', b'0', b'3']))?;
        write_forever(stream, &frame(HEADERS, END_HEADERS, id, &[0xbe]))
    });
    assert_get("endless interim responses", Http2, &url, HTTP2_INTERIM_LIMIT, Timeout);
}
