//! Tests of the auth layer, of key sources and of request signatures. A test service stands in for the server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod key_file;
mod key_provider;
mod key_runtimes;
mod not_sent;
mod origin;
mod placement;
mod rejected_keys;
mod resend;
mod signature;
#[path = "../support/mod.rs"]
mod support;

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, header::AUTHORIZATION, request::Parts};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_outbound::{
    ApiKey, BoxError, Error, ExponentialBackoff, Jitter,
    auth::{Auth, AuthLayer, FreshKey, KeyPlacement, KeySource, Origin, RefreshingKey},
    call::KeyReplaced,
    retry::RetryLayer,
    test_util::ScriptedResponse,
};

use self::support::{Content, Scripted::Status, ScriptedService, Seen, get, millis, request, secs};

const KEY: &str = "s3cret-0123456789";
const URI: &str = "https://api.example.com/v1";

fn key() -> ApiKey {
    ApiKey::new(KEY).unwrap()
}

/// A test server that returns 401 unless the key of the request starts with `accepted`. Clones share their requests.
#[derive(Clone)]
struct Server {
    service: ScriptedService,
    accepted: Arc<Mutex<&'static str>>,
}

impl Server {
    fn accepting(key: &'static str) -> Self {
        Self::slow(key, Duration::ZERO)
    }

    /// Returns a server that responds after `latency`.
    fn slow(key: &'static str, latency: Duration) -> Self {
        let accepted = Arc::new(Mutex::new(key));
        let current = Arc::clone(&accepted);
        let service = ScriptedService::from_fn(move |seen| {
            let status = if key_of(seen).starts_with(*current.lock().unwrap()) { 200 } else { 401 };
            ScriptedResponse::status(status).with_delay(latency)
        });
        Self { service, accepted }
    }

    /// Makes the server accept `key` instead of the previous key.
    fn accept(&self, key: &'static str) {
        *self.accepted.lock().unwrap() = key;
    }

    /// Returns the keys of the requests.
    fn keys(&self) -> Vec<String> {
        self.service.seen().iter().map(key_of).collect()
    }
}

/// Returns the key of a request, or an empty string.
fn key_of(seen: &Seen) -> String {
    seen.header("authorization").unwrap_or_default().replace("Bearer ", "")
}

/// The result of one fetch by the key provider of a test.
#[derive(Clone, Copy)]
enum Fetch {
    /// The fetch returns a key that expires after the given number of seconds: `key-1` at the first fetch, `key-2` at
    /// the second.
    Expiring(u64),
    /// The fetch returns a key that does not expire.
    Lasting,
    Fails,
    Panics,
    Hangs,
}

/// The number of fetches that a key provider has started.
#[derive(Debug, Clone)]
struct FetchCount(Arc<AtomicUsize>);

impl FetchCount {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns a key provider and its fetch counter. Each fetch takes `latency` and ends with the next result of `script`.
/// The last result repeats. After failed fetches the provider backs off for 1 s, 2 s, 4 s and so on, up to 20 s.
fn key_provider(latency: Duration, script: &'static [Fetch]) -> (RefreshingKey, FetchCount) {
    let fetches = FetchCount(Arc::default());
    let counter = fetches.clone();
    let provider = move || {
        let number = counter.0.fetch_add(1, Ordering::Relaxed);
        async move {
            // Several short sleeps wake the task several times, as a real connection does.
            for _ in (0..4).filter(|_| !latency.is_zero()) {
                tokio::time::sleep(latency / 4).await;
            }
            let fresh = FreshKey::new(ApiKey::new(format!("key-{}", number + 1)).unwrap());
            match script[number.min(script.len() - 1)] {
                Fetch::Expiring(lifetime) => Ok(fresh.with_lifetime(secs(lifetime))),
                Fetch::Lasting => Ok(fresh),
                Fetch::Fails => Err(BoxError::from("the vault is unavailable")),
                Fetch::Panics => panic!("the provider panics"),
                Fetch::Hangs => std::future::pending().await,
            }
        }
    };
    let backoff = ExponentialBackoff::new(secs(1), secs(20)).unwrap().with_jitter(Jitter::none());
    (RefreshingKey::new(provider).with_backoff(backoff), fetches)
}

/// Creates a source whose provider takes `latency`, and then reads the key of a vault, which has a backoff of a minute.
/// Returns the calls of the provider and the fetches of the vault.
fn keys_of_vault(latency: Duration, script: &'static [Fetch]) -> (KeySource, FetchCount, FetchCount) {
    let (vault, fetches) = key_provider(Duration::ZERO, script);
    let minute = ExponentialBackoff::new(secs(60), secs(60)).unwrap().with_jitter(Jitter::none());
    let vault = KeySource::from(vault.with_backoff(minute));
    let calls = FetchCount(Arc::default());
    let counter = calls.clone();
    let keys = RefreshingKey::new(move || {
        counter.0.fetch_add(1, Ordering::Relaxed);
        let vault = vault.clone();
        async move {
            tokio::time::sleep(latency).await;
            vault.current().await.map(FreshKey::new)
        }
    });
    (keys.into(), calls, fetches)
}

fn layer(keys: impl Into<KeySource>) -> AuthLayer {
    AuthLayer::new(keys, Origin::parse(URI).unwrap()).unwrap()
}

fn origin(url: &str) -> Origin {
    Origin::parse(url).unwrap()
}

fn bearer_layer(url: &str) -> AuthLayer {
    AuthLayer::new(key(), origin(url)).unwrap()
}

/// Returns an auth layer that sends the key in the query parameter `api_key`.
fn query_layer() -> AuthLayer {
    bearer_layer(URI).with_placement("query:api_key".parse().unwrap())
}

/// Returns an auth layer that calls `credential` with the head of each request.
fn closure_layer(
    credential: impl Fn(&mut Parts) -> Result<(), BoxError> + Send + Sync + 'static,
) -> AuthLayer {
    AuthLayer::from_fn(credential, origin(URI)).unwrap()
}

/// Sends a request through the layer and returns the request head that the inner service received.
async fn forwarded_head(layer: &AuthLayer, request: Request<Content>) -> Parts {
    let server = ScriptedService::new([Status(200)]);
    layer.layer(server.clone()).oneshot(request).await.unwrap();
    server.seen().remove(0).head
}

type Client = Auth<ScriptedService>;
type Response = http::Response<tower_outbound::Body>;

fn client(keys: impl Into<KeySource>, server: &Server) -> Client {
    layer(keys).layer(server.service.clone())
}

async fn send(client: &Client) -> Result<Response, Error> {
    client.clone().oneshot(get(URI)).await
}

/// Sends a request through a retry layer that makes no retries. After a 401, the layer still resends the request if the
/// auth layer has replaced the key.
async fn send_with_resend(service: Client) -> Result<Response, Error> {
    RetryLayer::new().with_max_attempts(1).unwrap().layer(service).oneshot(get(URI)).await
}

/// Runs `count` calls concurrently, each in its own task.
async fn run_concurrently<F>(count: usize, mut call: impl FnMut() -> F) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let calls: Vec<_> = (0..count).map(|_| tokio::spawn(call())).collect();
    let mut results = Vec::new();
    for call in calls {
        results.push(call.await.unwrap());
    }
    results
}
