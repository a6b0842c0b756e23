//! Tests that every HTTP status is returned as a response, and that a timeout or an invalid response is an error.

use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::Instant,
};
use tower_outbound::{
    Error,
    call::{Outcome, StopReason},
    transport::TransportConfig,
};

use super::{
    client, outcomes, preset, report,
    support::server::{Server, Wire, reply, stalled, within},
    text,
};

#[tokio::test]
async fn client_returns_a_404_with_its_body_without_a_retry() {
    let server = Server::start(Wire::Http1, |_, _| async { Some(reply(404, "no such thing")) }).await;
    let response = within(client(&server).get("/v1/none")).await.unwrap();
    assert_eq!(response.status(), 404);
    assert_eq!(report(&response).stop_reason(), Some(StopReason::NotRetryable));
    assert_eq!(report(&response).attempt_count(), 1);
    assert_eq!(text(response).await, "no such thing");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn client_returns_the_last_503_with_its_body_after_three_attempts() {
    let server = Server::with_statuses(Wire::Http1, [503]).await;
    let response = within(client(&server).get("/")).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(report(&response).stop_reason(), Some(StopReason::Exhausted));
    assert_eq!(outcomes(report(&response)), [Outcome::Response(StatusCode::SERVICE_UNAVAILABLE); 3]);
    assert_eq!(text(response).await, "answer 3", "the last response is returned with its body");
}

#[tokio::test]
async fn client_returns_a_redirect_without_following_it() {
    let target = Server::with_statuses(Wire::Http1, [200]).await;
    let location = format!("{}/v2", target.url());
    let server = Server::start(Wire::Http1, move |_, _| {
        let mut reply = reply(302, "over there");
        reply.headers_mut().insert("location", location.parse().unwrap());
        async move { Some(reply) }
    })
    .await;
    let response = within(client(&server).get("/v1")).await.unwrap();
    assert_eq!(response.status(), 302);
    assert_eq!(response.headers()["location"], format!("{}/v2", target.url()));
    assert_eq!(target.connections(), 0);
}

#[tokio::test]
async fn call_returns_a_timeout_error_if_no_attempt_gets_a_response() {
    let server = Server::start(Wire::Http1, |_, _| std::future::pending()).await;
    let client = preset(&server.url())
        .with_attempt_timeout(Duration::from_millis(50))
        .with_total_timeout(Duration::from_secs(20))
        .client()
        .unwrap();
    let start = Instant::now();
    let error = within(client.get("/")).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert!(start.elapsed() >= Duration::from_millis(50));
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::Timeout; 3]);
}

#[tokio::test]
async fn client_does_not_retry_post_after_a_timeout() {
    let server = Server::start(Wire::Http1, |_, _| std::future::pending()).await;
    let client = preset(&server.url()).with_attempt_timeout(Duration::from_millis(50)).client().unwrap();
    let error = within(client.post("/").body("once")).await.unwrap_err();
    assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
    let report = error.report().unwrap();
    assert_eq!(outcomes(report), [Outcome::Timeout]);
    assert_eq!(report.stop_reason(), Some(StopReason::NotIdempotent));
    assert!(server.seen().len() <= 1);
}

#[tokio::test]
async fn stalled_body_returns_an_error_after_the_idle_timeout() {
    for wire in [Wire::Http1, Wire::Http2] {
        let http2 = matches!(wire, Wire::Http2);
        let server = Server::start(wire, |number, _| async move {
            Some(if number == 1 { stalled(200) } else { reply(200, "fine") })
        })
        .await;
        let transport = TransportConfig::new();
        let transport = if http2 { transport.with_http2_prior_knowledge() } else { transport };
        // Even on a busy machine, the body of the second response arrives within one second.
        let limit = Duration::from_millis(1_000);
        let client =
            preset(&server.url()).with_body_idle_timeout(limit).client_with_transport(transport).unwrap();

        let response = within(client.get("/")).await.unwrap();
        assert_eq!(response.status(), 200);
        let start = Instant::now();
        let error = within(response.into_body().bytes_up_to(1024)).await.unwrap_err();
        assert!(start.elapsed() >= limit);
        let error = error.downcast_ref::<Error>().expect("the error of the body is an error of this crate");
        assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
        assert_eq!(error.to_string(), "response body stalled for 1s");

        assert_eq!(text(within(client.get("/")).await.unwrap()).await, "fine");
        // Abandoning a response closes the connection in HTTP/1, but only resets the stream in HTTP/2.
        assert_eq!(server.connections(), if http2 { 1 } else { 2 });
    }
}

#[tokio::test]
async fn stalled_body_stays_pending_without_an_idle_timeout() {
    let server = Server::start(Wire::Http1, |_, _| async { Some(stalled(200)) }).await;
    let mut body = within(client(&server).get("/")).await.unwrap().into_body();
    assert_eq!(within(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "a part");
    assert!(tokio::time::timeout(Duration::from_millis(200), body.frame()).await.is_err());
}

#[tokio::test]
async fn call_returns_an_error_if_the_response_is_not_http() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"220 mail.example.com ESMTP\r\n\r\n").await;
        }
    });
    let error = within(preset(&url).client().unwrap().post("/").body("once")).await.unwrap_err();
    assert!(error.is_service(), "{error:?}");
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::Failed]);
    server.abort();
}

#[tokio::test]
async fn client_returns_an_upgraded_connection_after_one_attempt() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let response =
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nhello";
        stream.write_all(response).await.unwrap();
        let mut message = [0; 4];
        stream.read_exact(&mut message).await.unwrap();
        stream.write_all(&message).await.unwrap();
        // If the client had opened a second connection, `accept` would return the connection immediately.
        tokio::time::timeout(Duration::ZERO, listener.accept()).await.is_err()
    });
    let request = http::Request::get("/socket").header("connection", "upgrade").header("upgrade", "echo");
    let client = preset(&url).client().unwrap();
    let response =
        within(client.execute(request.body(tower_outbound::Body::empty()).unwrap())).await.unwrap();
    assert_eq!((response.status(), report(&response).attempt_count()), (StatusCode::SWITCHING_PROTOCOLS, 1));
    assert_eq!(report(&response).stop_reason(), Some(StopReason::Success));

    let mut socket = hyper_util::rt::TokioIo::new(hyper::upgrade::on(response.into_http()).await.unwrap());
    let mut received = [0; 9];
    socket.read_exact(&mut received[..5]).await.unwrap();
    socket.write_all(b"echo").await.unwrap();
    socket.read_exact(&mut received[5..]).await.unwrap();
    assert_eq!(&received, b"helloecho");
    assert!(server.await.unwrap(), "the call opens only one connection");
}
