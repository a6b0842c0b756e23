//! Tests calls whose connection fails. A non-idempotent call is retried only if it was certainly not sent.

use std::{
    io,
    sync::{Arc, Mutex},
};

use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::{
    client::legacy::connect::HttpConnector,
    rt::{TokioExecutor, TokioIo},
};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tower::{Layer, ServiceExt};
use tower_outbound::{ErrorKind, call::Outcome, error::DeliveryError};

use super::*;

/// Returns the URL of a port that refuses connections. The socket is bound but does not listen, so no other process
/// gets the port.
fn refusing_socket() -> (TcpSocket, http::Uri) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let uri = format!("http://{}", socket.local_addr().unwrap()).parse().unwrap();
    (socket, uri)
}

/// In this test, no server listens until the channel connects for the second time.
#[tokio::test]
async fn call_whose_connection_was_refused_is_retried() {
    let (socket, uri) = refusing_socket();
    let (socket, started) = (Mutex::new((0, Some(socket))), Arc::new(Mutex::new(None)));
    let starting = Arc::clone(&started);
    let connector = tower::service_fn(move |uri: http::Uri| {
        let (connections, socket) = &mut *socket.lock().unwrap();
        *connections += 1;
        if *connections == 2 {
            let listener = socket.take().unwrap().listen(16).unwrap();
            *starting.lock().unwrap() = Some(Server::over(listener, [Scripted::Success]));
        }
        HttpConnector::new().oneshot(uri)
    });
    // The retry layer treats every call as non-idempotent.
    let stack = ServiceBuilder::new()
        .layer(retry().with_idempotent(|_| false))
        .map_request(|request: http::Request<ReplayBody<Body>>| request.map(Body::new))
        .service(Endpoint::from(uri.clone()).connect_with_connector_lazy(connector));
    let response = HealthClient::with_origin(stack, uri).check(request()).await.unwrap();
    assert_eq!(response.extensions().get::<Report>().unwrap().attempt_count(), 2);
    assert_eq!(started.lock().unwrap().take().unwrap().calls(), 1);
}

/// Starts a server that reads each request and resets the request's stream. Returns the URL and the number of requests.
async fn resetting_server(reason: h2::Reason) -> (http::Uri, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            let service = service_fn(move |_: http::Request<Incoming>| {
                counted.fetch_add(1, Ordering::SeqCst);
                async move { Err::<http::Response<String>, _>(h2::Error::from(reason)) }
            });
            let serving = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
        }
    });
    (uri, count)
}

#[tokio::test]
async fn call_is_retried_after_a_stream_reset_if_idempotent_or_if_the_stream_was_refused() {
    let table = [
        (h2::Reason::INTERNAL_ERROR, false, 1),
        (h2::Reason::INTERNAL_ERROR, true, 3),
        (h2::Reason::REFUSED_STREAM, false, 3),
    ];
    for (reason, idempotent, expected) in table {
        let (uri, count) = resetting_server(reason).await;
        let retry = retry().with_idempotent(move |_| idempotent);
        let stack = stack(uri.clone(), retry, Duration::from_secs(10));
        HealthClient::with_origin(stack, uri).check(request()).await.unwrap_err();
        assert_eq!(count.load(Ordering::SeqCst), expected, "{reason:?}, idempotent: {idempotent}");
    }
}

#[tokio::test]
async fn call_is_retried_after_a_tls_failure_only_if_the_error_is_marked_as_not_sent() {
    for (marked, expected) in [(false, &[Outcome::Failed][..]), (true, &[Outcome::NotSent; 3])] {
        let tls = tower::service_fn(|_: http::Uri| async {
            Err::<TokioIo<TcpStream>, _>(io::Error::new(io::ErrorKind::InvalidData, "handshake failed"))
        });
        let uri = http::Uri::from_static("http://127.0.0.1:1");
        let stack = ServiceBuilder::new()
            .layer(retry().with_idempotent(|_| false))
            .map_request(|request: http::Request<ReplayBody<Body>>| request.map(Body::new))
            .map_err(move |error: tonic::transport::Error| {
                if marked {
                    DeliveryError::not_sent_if_caused_by::<tonic::ConnectError>(error)
                } else {
                    error.into()
                }
            })
            .service(Endpoint::from(uri.clone()).connect_with_connector_lazy(tls));
        let status = HealthClient::with_origin(stack, uri).check(request()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "error marked as not sent: {marked}");
        let error = status.source().and_then(|source| source.downcast_ref::<Error>()).unwrap();
        let attempts = error.report().unwrap().attempts();
        let outcomes: Vec<_> = attempts.iter().filter_map(|attempt| attempt.outcome).collect();
        assert_eq!(outcomes, expected, "error marked as not sent: {marked}");
    }
}

/// tonic wraps the channel's errors in its own error types. This test reads the error kind through these wrappers.
#[tokio::test]
async fn error_kind_names_the_failure_of_a_channel() {
    // The silent server accepts connections and never reads from them.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent: http::Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (_refuses, refusing) = refusing_socket();
    let slow = Endpoint::from(silent.clone()).timeout(millis(20));
    for (channel, kind) in [
        (Endpoint::from(refusing).connect_lazy(), ErrorKind::ConnectRefused),
        (slow.connect_lazy(), ErrorKind::AttemptTimeout),
    ] {
        let stack = RequestIdLayer::new().layer(channel);
        let status = HealthClient::with_origin(stack, silent.clone()).check(request()).await.unwrap_err();
        let error = Error::find_in(&status).unwrap();
        assert_eq!(error.kind(), kind, "{error:?}");
    }
}
