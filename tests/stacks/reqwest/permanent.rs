//! Tests that a permanent failure is not retried through reqwest, for a client that the adapter builds and for an
//! existing client. reqwest is built without TLS, so a layer of its connector makes the handshakes.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Uri};
use hyper_util::client::legacy::connect::{HttpConnector, proxy::Tunnel};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};
use tower::{Layer, Service, ServiceExt};
use tower_outbound::{Body, BoxError, ErrorKind, adapter::Reqwest, call::StopReason};

use super::{
    builder,
    handshakes::Case,
    peer,
    stack::{quick_retry, within},
};

type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// A connector layer that fails with the error of `connect`.
#[derive(Clone)]
struct Failing<S> {
    inner: S,
    connect: Arc<dyn Fn() -> Connecting<()> + Send + Sync>,
}

impl<S, U> Service<U> for Failing<S>
where
    S: Service<U, Error = BoxError, Response: 'static>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Connecting<S::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, _: U) -> Self::Future {
        let connecting = (self.connect)();
        Box::pin(async { Err(connecting.await.unwrap_err()) })
    }
}

fn failing<F, W>(connect: F) -> reqwest::ClientBuilder
where
    F: Fn() -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let connect: Arc<dyn Fn() -> Connecting<()> + Send + Sync> = Arc::new(move || Box::pin(connect()));
    let layer = move |inner| Failing { inner, connect: Arc::clone(&connect) };
    builder().connector_layer(tower::layer::layer_fn(layer))
}

/// Sends a GET over both kinds of clients, and asserts the number of attempts.
async fn assert_attempts(
    name: &str,
    kind: ErrorKind,
    attempts: u32,
    client: impl Fn() -> reqwest::ClientBuilder,
) {
    let existing = client().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    for reqwest in [Reqwest::new(client()).unwrap(), Reqwest::from_client(existing)] {
        let request = Request::get("http://nowhere.test/").body(Body::empty()).unwrap();
        let error = within(quick_retry().layer(reqwest.clone()).oneshot(request)).await.unwrap_err();
        let report = error.report().unwrap();
        let stop = if attempts == 1 { StopReason::NotRetryable } else { StopReason::Exhausted };
        assert_eq!(
            (error.kind(), report.attempt_count() as u32, report.stop_reason()),
            (kind, attempts, Some(stop)),
            "{name}, {reqwest:?}: {error:?}"
        );
    }
}

#[tokio::test]
async fn reqwest_call_is_not_retried_after_a_permanent_tls_failure() {
    // The alert after a handshake arrives on the connection, which reqwest does not let the layer replace.
    for case in Case::all().into_iter().filter(|case| !case.is_late) {
        let address = case.serve(b"http/1.1").trim_start_matches("https://").to_owned();
        let tls = TlsConnector::from(Arc::new(case.client_config()));
        let client = || {
            let (address, tls) = (address.clone(), tls.clone());
            failing(move || {
                let (address, tls) = (address.clone(), tls.clone());
                async move {
                    let stream = TcpStream::connect(address).await?;
                    tls.connect(ServerName::try_from("127.0.0.1")?, stream).await?;
                    Ok(())
                }
            })
        };
        assert_attempts(case.name, ErrorKind::Tls, 1, client).await;
    }
}

#[tokio::test]
async fn reqwest_call_is_not_retried_after_the_proxy_requires_a_password() {
    for (reply, attempts) in [("407 Proxy Authentication Required", 1), ("502 Bad Gateway", 3)] {
        let proxy = peer::serve(move |mut stream| async move {
            peer::read_head(&mut stream).await;
            let _ =
                stream.write_all(format!("HTTP/1.1 {reply}\r\ncontent-length: 0\r\n\r\n").as_bytes()).await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        let client = || {
            failing(move || async move {
                let proxy = format!("http://{proxy}").parse()?;
                let mut tunnel = Tunnel::new(proxy, HttpConnector::new());
                tunnel.call(Uri::from_static("https://api.test")).await?;
                Ok(())
            })
        };
        assert_attempts(reply, ErrorKind::Connect, attempts, client).await;
    }
}

/// A resolver that fails like that of the operating system.
struct FailingResolver(&'static str);

impl Resolve for FailingResolver {
    fn resolve(&self, _: Name) -> Resolving {
        let error = io::Error::other(format!("failed to lookup address information: {}", self.0));
        Box::pin(async { Err::<Addrs, _>(BoxError::from(error)) })
    }
}

#[tokio::test]
async fn reqwest_call_is_not_retried_after_an_unknown_host_name() {
    for (reason, attempts) in [("Name or service not known", 1), ("Temporary failure in name resolution", 3)]
    {
        let client = || builder().dns_resolver(Arc::new(FailingResolver(reason)));
        assert_attempts(reason, ErrorKind::Dns, attempts, client).await;
    }
}
