//! A byte at a time.

use std::{io::Write, net::TcpStream, thread, time::Duration};

use tokio::time::Instant;

use super::{
    server::{http2::*, *},
    *,
};

/// Fifty a second.
fn drip(stream: &mut TcpStream, mut byte: impl FnMut() -> Vec<u8>) -> std::io::Result<()> {
    loop {
        stream.write_all(&byte())?;
        thread::sleep(Duration::from_millis(20));
    }
}

/// The server that drips the bytes of its answer's head.
fn dripping_head(wire: Wire) -> String {
    match wire {
        Wire::Http1 => serve_http1(|stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\na: ")?;
            drip(stream, || b"x".to_vec())
        }),
        Wire::Http2 => serve_http2(|stream, id| {
            // Of a frame that says that there is more of it.
            stream.write_all(&[0, 0x3f, 0xff, HEADERS, END_HEADERS])?;
            stream.write_all(&id.to_be_bytes())?;
            drip(stream, || vec![0x88])
        }),
    }
}

fn dripping_body(wire: Wire, status: u16) -> String {
    match wire {
        Wire::Http1 => serve_http1(move |stream| {
            write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: 100000\r\n\r\n")?;
            drip(stream, || b"1".to_vec())
        }),
        Wire::Http2 => serve_http2(move |stream, id| {
            let head = if status == 200 { STATUS_200 } else { STATUS_503 };
            stream.write_all(&frame(HEADERS, END_HEADERS, id, head))?;
            // Beside the answers to other requests.
            let mut stream = stream.try_clone()?;
            thread::spawn(move || drip(&mut stream, || frame(DATA, 0, id, b"1")).is_ok());
            Ok(())
        }),
    }
}

const BOTH: [Wire; 2] = [Wire::Http1, Wire::Http2];

#[test]
fn a_head_that_drips_ends_with_the_attempt() {
    for wire in BOTH {
        let preset = rates(&dripping_head(wire)).with_attempt_timeout(Duration::from_millis(100));
        let client = preset.client_with_transport(transport(wire)).unwrap();
        let error = held(&format!("{wire:?} dripping head"), WAITING, async {
            client.get("/v1/latest").await.unwrap_err()
        });
        assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
        assert_eq!(attempts(error.report()), 3);
    }
}

/// The 100 ms that a failed answer's body may take, for each attempt, and not the hours that it would.
#[test]
fn the_body_of_a_failure_that_drips_is_given_up() {
    for wire in BOTH {
        let client = ready(&dripping_body(wire, 503), wire);
        let came = held(&format!("{wire:?} 503, dripping body"), WAITING, get(&client, Duration::ZERO));
        assert_eq!(came.unwrap(), 503);
    }
}

#[cfg(feature = "json")]
#[test]
fn a_body_that_drips_ends_with_the_deadline_where_json_is_read() {
    for wire in BOTH {
        let preset = rates(&dripping_body(wire, 200)).with_total_timeout(Duration::from_millis(300));
        let client = preset.client_with_transport(transport(wire)).unwrap();
        let error = held(&format!("{wire:?} 200, dripping body, read as JSON"), WAITING, async {
            client.get_json::<Vec<u8>>("/v1/latest").await.unwrap_err()
        });
        assert!(error.is_timeout(), "{error:?}");
    }
}

/// The idle timeout ends a body that stands still, and not one that drips: for that there is the caller's own timeout.
#[test]
fn a_body_that_stands_still_ends_with_the_idle_timeout() {
    let url = serve_http1(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nx")?;
        silence(stream)
    });
    let idle = Duration::from_millis(200);
    let client = rates(&url).with_body_idle_timeout(idle).client().unwrap();
    let error = held("Http1 200, stalled body", WAITING, async {
        client.get("/v1/latest").await.unwrap().into_body().collect(1000).await.unwrap_err()
    });
    assert!(error.downcast_ref::<Error>().is_some_and(Error::is_timeout), "{error:?}");

    let client = rates(&dripping_body(Wire::Http1, 200)).with_body_idle_timeout(idle).client().unwrap();
    let (read, took) = held("Http1 200, dripping body, idle timeout", WAITING, async {
        let body = client.get("/v1/latest").await.unwrap().into_body();
        let start = Instant::now();
        let read = tokio::time::timeout(Duration::from_millis(600), body.collect(1 << 20)).await;
        (read.is_ok(), start.elapsed())
    });
    // Where the machine holds the server up for longer than the idle timeout, it is right to end it.
    assert!(!read || took >= idle);
}

/// The handshake is part of the attempt; the 5 s to connect are over when TCP has.
#[cfg(feature = "rustls")]
#[test]
fn a_handshake_that_never_comes_ends_with_the_attempt() {
    let url = serve(|mut stream| silence(&mut stream)).replace("http:", "https:");
    let client = hasty(&url, Wire::Http1);
    timed_out(held("TLS, silence", WAITING, get(&client, Duration::ZERO)));
    // A record of the handshake that is announced, and never whole.
    let url = serve(|mut stream| {
        stream.write_all(&[22, 3, 3, 0x40, 0, 2, 0xff, 0xff, 0xff])?;
        drip(&mut stream, || vec![0])
    });
    let client = hasty(&url.replace("http:", "https:"), Wire::Http1);
    let came = held("TLS, dripping handshake", WAITING, get(&client, Duration::ZERO));
    assert!(came.is_err());
}
