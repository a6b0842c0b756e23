//! Interim answers: any number of 1xx may come before the answer itself.

use std::{io::Write, time::Duration};

use super::{
    server::{http2::*, *},
    *,
};

const EARLY_HINTS: &[u8] = b"HTTP/1.1 103 BeforeBody Hints\r\nlink: </a.css>\r\n\r\n";
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

#[test]
fn ten_thousand_before_an_answer() {
    for one in [EARLY_HINTS, CONTINUE] {
        let url = serve_http1(move |stream| {
            stream.write_all(&one.repeat(10_000))?;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        });
        let client = ready(&url, Wire::Http1);
        let came = held("Http1 10,000 interim answers", HEAD1, get(&client, Duration::ZERO));
        assert_eq!(came.unwrap(), 200);
    }
    let url = serve_http2(|stream, id| {
        deaf(stream)?;
        stream.write_all(&frame(HEADERS, END_HEADERS, id, STATUS_103).repeat(10_000))?;
        stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, STATUS_200))?;
        silence(stream)
    });
    let client = ready(&url, Wire::Http2);
    let came = held("Http2 10,000 interim answers", INTERIM2, get(&client, Duration::ZERO));
    assert_eq!(came.unwrap(), 200);
}

#[test]
fn without_an_end() {
    for one in [EARLY_HINTS, CONTINUE] {
        let url = serve_http1(move |stream| endlessly(stream, one));
        let client = hasty(&url, Wire::Http1);
        timed_out(held("Http1 endless interim answers", HEAD1, get(&client, Duration::ZERO)));
    }
    let url = serve_http2(|stream, id| {
        deaf(stream)?;
        // Put in the table once, and named by one byte from then on: the shortest that there is.
        stream.write_all(&frame(HEADERS, END_HEADERS, id, &[0x48, 3, b'1', b'0', b'3']))?;
        endlessly(stream, &frame(HEADERS, END_HEADERS, id, &[0xbe]))
    });
    let client = hasty(&url, Wire::Http2);
    timed_out(held("Http2 endless interim answers", INTERIM2, get(&client, Duration::ZERO)));
}
