//! Keys that change: their sources, the effect of a 401, and single-flight refreshes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod file;
mod forms;
mod layer;
mod provider;
mod refused;
mod resent;
mod secret;
mod sign;
#[path = "../support/mod.rs"]
mod support;

use std::{
    convert::Infallible,
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response, header::AUTHORIZATION};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_outbound::{
    ApiKey, BoxError, Error, ExponentialBackoff, Jitter,
    auth::{Auth, AuthLayer, FreshKey, KeyPlacement, KeySource, Origin, RefreshingKey},
    body::ReplayBody,
    call::KeyReplaced,
    retry::RetryLayer,
};

use self::support::{Content, get, millis, request, secs};

const URI: &str = "https://api.example.com/v1";

/// A server that records the key and time of each request, and responds 401 unless the key starts with `accepts`.
#[derive(Clone)]
struct Server {
    seen: Arc<Mutex<Vec<(Instant, String)>>>,
    accepts: Arc<Mutex<&'static str>>,
    latency: Duration,
}

impl Server {
    fn accepting(key: &'static str) -> Self {
        Self { seen: Arc::default(), accepts: Arc::new(Mutex::new(key)), latency: Duration::ZERO }
    }

    fn after(self, latency: Duration) -> Self {
        Self { latency, ..self }
    }

    fn accept(&self, key: &'static str) {
        *self.accepts.lock().unwrap() = key;
    }

    fn keys(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|(_, key)| key.clone()).collect()
    }

    fn times(&self) -> Vec<Instant> {
        self.seen.lock().unwrap().iter().map(|(at, _)| *at).collect()
    }
}

impl<B: Body<Data: Send, Error: Debug> + Send + 'static> Service<Request<B>> for Server {
    type Response = Response<Content>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Content>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let key = request.headers().get(AUTHORIZATION).map_or("", |value| value.to_str().unwrap());
        let key = key.trim_start_matches("Bearer ").to_owned();
        let status = if key.starts_with(*self.accepts.lock().unwrap()) { 200 } else { 401 };
        self.seen.lock().unwrap().push((Instant::now(), key));
        let latency = self.latency;
        async move {
            assert_eq!(request.into_body().collect().await.unwrap().to_bytes(), "hello");
            if !latency.is_zero() {
                // In steps, as for a connection, a request and a response.
                for _ in 0..4 {
                    tokio::time::sleep(latency / 4).await;
                }
            }
            Ok(Response::builder().status(status).body(Full::<Bytes>::default()).unwrap())
        }
        .boxed()
    }
}

/// The result of one call of a provider.
#[derive(Clone, Copy)]
enum Fetch {
    /// Returns `key-1` at the first call and `key-2` at the second, valid for this many seconds.
    Gives(u64),
    /// Returns a key that does not expire.
    Lasting,
    Fails,
    Panics,
    Hangs,
}

#[derive(Debug, Clone)]
struct Asked(Arc<AtomicUsize>);

impl Asked {
    fn times(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns a provider that takes `latency` and follows `script`, repeating its last step, and the count of its calls. Its
/// backoff is 1 s, 2 s, 4 s.
fn provided(latency: Duration, script: &'static [Fetch]) -> (RefreshingKey, Asked) {
    let asked = Asked(Arc::default());
    let count = asked.clone();
    let provider = move || {
        let number = count.0.fetch_add(1, Ordering::Relaxed);
        async move {
            // In steps, as for a connection, a request and a response.
            for _ in 0..4 {
                tokio::time::sleep(latency / 4).await;
            }
            let fresh = FreshKey::new(ApiKey::new(format!("key-{}", number + 1)).unwrap());
            match script[number.min(script.len() - 1)] {
                Fetch::Gives(lifetime) => Ok(fresh.with_lifetime(secs(lifetime))),
                Fetch::Lasting => Ok(fresh),
                Fetch::Fails => Err(BoxError::from("the vault is shut")),
                Fetch::Panics => panic!("in the provider"),
                Fetch::Hangs => std::future::pending().await,
            }
        }
    };
    let backoff = ExponentialBackoff::new(secs(1), secs(20)).unwrap().with_jitter(Jitter::none());
    (RefreshingKey::new(provider).with_backoff(backoff), asked)
}

fn layer(keys: impl Into<KeySource>) -> AuthLayer {
    AuthLayer::new(keys, Origin::parse(URI).unwrap()).unwrap()
}

type Client = Auth<Server>;

fn client(keys: impl Into<KeySource>, server: &Server) -> Client {
    layer(keys).layer(server.clone())
}

async fn send(client: &Client) -> Result<Response<Content>, Error> {
    client.clone().oneshot(get(URI)).await
}

/// Sends a request through a retry layer that only resends it with another key.
async fn send_again<S>(service: S) -> Result<Response<Content>, Error>
where
    S: Service<Request<ReplayBody<Content>>, Response = Response<Content>, Error = Error> + Clone,
{
    RetryLayer::new().with_max_attempts(1).unwrap().layer(service).oneshot(get(URI)).await
}

/// Runs `count` calls concurrently, each in its own task.
async fn together<F>(count: usize, mut call: impl FnMut() -> F) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let calls: Vec<_> = (0..count).map(|_| tokio::spawn(call())).collect();
    let mut ended = Vec::new();
    for call in calls {
        ended.push(call.await.unwrap());
    }
    ended
}
