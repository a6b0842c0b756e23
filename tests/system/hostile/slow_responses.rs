//! Tests responses that arrive byte by byte or stall, and incomplete TLS handshakes.

use std::{io::Write, net::TcpStream, thread, time::Duration};

use super::{
    server::{http2::*, *},
    *,
};

/// Writes 50 pieces per second until the client closes the connection.
fn drip(stream: &mut TcpStream, mut piece: impl FnMut() -> Vec<u8>) -> std::io::Result<()> {
    loop {
        stream.write_all(&piece())?;
        thread::sleep(Duration::from_millis(20));
    }
}

/// Serves response headers that arrive byte by byte and never end.
fn slow_headers(protocol: Protocol) -> String {
    match protocol {
        Http1 => serve_http1(|stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\na: ")?;
            drip(stream, || b"x".to_vec())
        }),
        Http2 => serve_http2(|stream, id| {
            // The frame announces more bytes than ever arrive.
            stream.write_all(&[0, 0x3f, 0xff, HEADERS, END_HEADERS])?;
            stream.write_all(&id.to_be_bytes())?;
            drip(stream, || vec![0x88])
        }),
    }
}

/// Serves a body that arrives byte by byte.
fn slow_body(protocol: Protocol, status: u16) -> String {
    match protocol {
        Http1 => serve_http1(move |stream| {
            write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: 100000\r\n\r\n")?;
            drip(stream, || b"1".to_vec())
        }),
        Http2 => serve_http2(move |stream, id| {
            let header_block = if status == 200 { STATUS_200 } else { STATUS_503 };
            stream.write_all(&frame(HEADERS, END_HEADERS, id, header_block))?;
            // Another thread writes the body, so that the server can respond to the retries.
            let mut stream = stream.try_clone()?;
            thread::spawn(move || drip(&mut stream, || frame(DATA, 0, id, b"1")).is_ok());
            Ok(())
        }),
    }
}

#[test]
fn slow_headers_end_with_the_attempt_timeout() {
    for protocol in PROTOCOLS {
        let preset = preset_builder(&slow_headers(protocol)).with_attempt_timeout(Duration::from_millis(100));
        let client = preset.client_with_transport(transport(protocol)).unwrap();
        let error = with_memory_limit(&format!("{protocol:?} slow headers"), IDLE_LIMIT, async {
            client.get("/v1/latest").await.unwrap_err()
        });
        assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
        assert_eq!(attempts(error.report()), 3);
    }
}

/// Draining an error body takes at most 100 ms per attempt. This body would take over half an hour.
#[test]
fn client_stops_draining_a_slow_error_body() {
    for protocol in PROTOCOLS {
        assert_get("503, slow body", protocol, &slow_body(protocol, 503), IDLE_LIMIT, Status(503));
    }
}

#[cfg(feature = "json")]
#[test]
fn fetch_json_ends_at_the_deadline_if_the_body_is_slow() {
    for protocol in PROTOCOLS {
        let preset = preset_builder(&slow_body(protocol, 200)).with_total_timeout(Duration::from_millis(300));
        let client = preset.client_with_transport(transport(protocol)).unwrap();
        let error =
            with_memory_limit(&format!("{protocol:?} 200, slow body, read as JSON"), IDLE_LIMIT, async {
                client.get("/v1/latest").fetch_json::<Vec<u8>>().await.unwrap_err()
            });
        assert!(error.is_timeout(), "{error:?}");
    }
}

/// The connect timeout of 5 s covers the TLS handshake, too. The attempt timeout of the first client is shorter.
#[cfg(feature = "rustls")]
#[test]
fn incomplete_tls_handshake_ends_with_the_attempt_timeout() {
    let url = serve(|mut stream| read_until_closed(&mut stream)).replace("http:", "https:");
    assert_get("over TLS, no handshake", Http1, &url, IDLE_LIMIT, Timeout);
    // The handshake record announces more bytes than arrive before the timeout.
    let url = serve(|mut stream| {
        stream.write_all(&[22, 3, 3, 0x40, 0, 2, 0xff, 0xff, 0xff])?;
        drip(&mut stream, || vec![0])
    });
    let client = short_timeout_client(&url.replace("http:", "https:"), Http1);
    let result = with_memory_limit("TLS, slow handshake", IDLE_LIMIT, get_status(&client, Duration::ZERO));
    assert!(result.is_err());
}
