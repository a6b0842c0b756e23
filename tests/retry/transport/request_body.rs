//! Tests requests whose body streams data from another connection. The body fails with an error that looks like a
//! failed connect of the client, although the server has already received part of the request.

use std::{
    convert::Infallible,
    fmt,
    io::{self, ErrorKind::ConnectionRefused},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response, Uri};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    BoxError, Report,
    body::ReplayBody,
    call::{Outcome, StopReason},
};

use super::{
    server::refusing,
    stack::{METHODS, quick_retry, within},
};

type Content = UnsyncBoxBody<Bytes, BoxError>;

/// An error type that the retry layer does not know.
#[derive(Debug)]
struct Unknown(BoxError);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown")
    }
}

impl std::error::Error for Unknown {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

/// Starts a server that reads every request. Returns its URL and a counter of the requests whose headers arrived.
async fn start_server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, seen) =
        (format!("http://{}/v1", listener.local_addr().unwrap()), Arc::<AtomicUsize>::default());
    let counter = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let seen = Arc::clone(&counter);
            let service = service_fn(move |request: Request<Incoming>| {
                seen.fetch_add(1, SeqCst);
                async {
                    let _ = request.into_body().collect().await;
                    Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
                }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (url, seen)
}

/// A custom HTTP/1.1 client that returns connection errors and body errors unchanged. After each chunk, the client
/// waits until the server has seen the request.
async fn send(
    request: Request<ReplayBody<Content>>,
    seen: Arc<AtomicUsize>,
) -> Result<Response<Content>, BoxError> {
    let (head, mut body) = request.into_parts();
    let mut stream = TcpStream::connect(head.uri.authority().unwrap().as_str()).await?;
    let start = format!("{} /v1 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n", head.method);
    stream.write_all(start.as_bytes()).await?;
    let before = seen.load(SeqCst);
    while let Some(frame) = body.frame().await {
        let data = frame?.into_data().unwrap();
        stream.write_all(format!("{:x}\r\n", data.len()).as_bytes()).await?;
        stream.write_all(&[&*data, b"\r\n"].concat()).await?;
        while seen.load(SeqCst) == before {
            tokio::task::yield_now().await;
        }
    }
    stream.write_all(b"0\r\n\r\n").await?;
    stream.read_exact(&mut [0; 12]).await?;
    Ok(Response::new(Full::default().map_err(BoxError::from).boxed_unsync()))
}

/// Returns three "connection refused" errors that a request body can return. The second is the error of an HTTP
/// connector, wrapped in an unknown error type.
async fn connect_errors() -> [BoxError; 3] {
    let socket = refusing();
    let uri: Uri = format!("http://{}/", socket.local_addr().unwrap()).parse().unwrap();
    let not_connected = HttpConnector::new().oneshot(uri).await.unwrap_err();
    let refused = || io::Error::from(ConnectionRefused);
    [refused().into(), Unknown(Box::new(not_connected)).into(), refused().into()]
}

#[tokio::test]
async fn request_is_not_retried_if_its_body_fails_with_connection_refused() {
    for method in METHODS {
        // With the replay limit of 2 bytes, the body exceeds the limit before the body fails.
        for (failure, limit) in connect_errors().await.into_iter().zip([1024, 1024, 2]) {
            let (url, seen) = start_server().await;
            let counter = Arc::clone(&seen);
            let service = tower::service_fn(move |request| send(request, Arc::clone(&counter)));
            let case = format!("{method} {failure:?}");
            let frames = stream::iter([Ok(Frame::data(Bytes::from("part"))), Err(failure)]);
            let body = StreamBody::new(frames.boxed()).boxed_unsync();
            let request = Request::builder().method(&method).uri(&url).body(body).unwrap();
            let retry = quick_retry().with_replay_limit(limit);
            let error = within(retry.layer(service).oneshot(request)).await.unwrap_err();
            let report = error.report().unwrap();
            let outcomes: Vec<_> = report.attempts().iter().filter_map(|attempt| attempt.outcome).collect();
            let stop_reason =
                if method == Method::POST { StopReason::NotIdempotent } else { StopReason::NotReplayable };
            assert_eq!(
                (&outcomes[..], report.stop_reason()),
                (&[Outcome::Failed][..], Some(stop_reason)),
                "{case}"
            );
            assert_eq!(seen.load(SeqCst), 1, "{case}");
        }
    }
}

#[tokio::test]
async fn retry_layer_retries_any_method_if_a_custom_client_cannot_connect() {
    for method in METHODS {
        let socket = refusing();
        let url = format!("http://{}/v1", socket.local_addr().unwrap());
        let service = tower::service_fn(|request| send(request, Arc::default()));
        let body = Full::from("letter").map_err(BoxError::from).boxed_unsync();
        let request = Request::builder().method(&method).uri(&url).body(body).unwrap();
        let error = within(quick_retry().layer(service).oneshot(request)).await.unwrap_err();
        let report: &Report = error.report().unwrap();
        let outcomes: Vec<_> = report.attempts().iter().filter_map(|attempt| attempt.outcome).collect();
        assert_eq!(
            (&outcomes[..], report.stop_reason()),
            (&[Outcome::NotSent; 3][..], Some(StopReason::Exhausted))
        );
    }
}
