//! Guarantee 6: the key goes only to its own origin and appears nowhere else.
//!
//! The tests run whole stacks and capture the log events and spans of every crate at level TRACE. The tests search for
//! the key in this log, in `Debug` and `Display` output of public types, and in error chains, reports and panic
//! messages.

#![cfg(feature = "client")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod coverage;
#[cfg(feature = "json")]
mod echoed_keys;
mod failures;
#[cfg(feature = "oauth2")]
mod oauth2;
mod panics;
mod public_types;
mod responses;
mod settings;
#[path = "../../support/mod.rs"]
mod support;

use std::{
    collections::BTreeSet,
    error::Error as StdError,
    fmt::{Debug, Display},
    future::Future,
    panic,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use http::{Extensions, Response};
use tokio::runtime::{Builder, Handle};
use tower_outbound::{
    ApiKey, Client, Error, ExponentialBackoff, Jitter, Report,
    auth::{FreshKey, RefreshingKey},
    client::{self, RequestBuilder},
    limit::LocalLimiter,
    preset,
    retry::RetryLayer,
    stack::StackBuilder,
    transport::TransportConfig,
};
use tracing::{level_filters::LevelFilter, subscriber::NoSubscriber};
use tracing_subscriber::util::SubscriberInitExt;

use self::support::{
    capture::Capture,
    key_search::Search,
    panic_text,
    server::{self, Seen, Server, Wire, reply},
};

/// The key begins and ends with characters that base64, percent-encoding and `Debug` change.
const KEY: &str = "k3y/+=%~&\"\\5ecr3t?of>the<tests\\\"&~%=+/3nd";

/// A base URL that a client accepts. Without TLS, a client accepts only a loopback address.
const CLIENT_URL: &str = if cfg!(feature = "rustls") { "https://host" } else { "http://127.0.0.1:9" };

/// Returns a key that begins and ends like [`KEY`], so that a search for [`KEY`] also finds this key.
fn numbered_key(number: usize) -> String {
    KEY.replace("of>the<tests", &format!("number{number}"))
}

fn key() -> ApiKey {
    ApiKey::new(KEY).unwrap()
}

static SEARCH: LazyLock<Search> = LazyLock::new(|| Search::new(KEY));

/// The log of all threads except the server threads, and the messages of all panics.
static LOG: LazyLock<Capture> = LazyLock::new(|| {
    let (log, subscriber) = Capture::subscriber(LevelFilter::TRACE);
    // Also captures records of the `log` crate.
    subscriber.init();
    let (panics, previous_hook) = (log.clone(), panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        // The panic message of a failed check quotes the key, so the log must not contain that message.
        if panic_text(panic.payload()).is_none_or(|text| !text.starts_with(KEY_FOUND)) {
            panics.add(format!("panic: {panic} {panic:?}"));
        }
        previous_hook(panic);
    }));
    log
});

/// The targets of the log events of all runs. Each run clears the log, but keeps these targets.
static TARGETS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

const KEY_FOUND: &str = "found the key";

/// Asserts that the text contains no part of the key. `name` describes the text in the panic message.
#[track_caller]
fn check_text(name: &str, text: &str) {
    if let Some(found) = SEARCH.find(text) {
        panic!("{KEY_FOUND} in {name}, {found}");
    }
}

#[track_caller]
fn check_debug(value: &dyn Debug) {
    check_text("Debug", &format!("{value:?}"));
    check_text("Debug", &format!("{value:#?}"));
}

#[track_caller]
fn check_display(value: &dyn Display) {
    check_text("Display", &format!("{value}"));
    check_text("Display", &format!("{value:#}"));
}

/// Asserts that neither the error nor its sources show the key.
#[track_caller]
fn check_error_chain(error: &(dyn StdError + 'static)) {
    let mut next = Some(error);
    while let Some(error) = next {
        check_debug(&error);
        check_display(&error);
        next = error.source();
    }
}

/// Asserts that the error, its sources and its report do not show the key.
#[track_caller]
fn check_error(error: &Error) {
    check_error_chain(error);
    error.report().into_iter().for_each(check_report);
}

#[track_caller]
fn check_report(report: &Report) {
    check_debug(report);
    check_display(report);
    report.attempts().iter().for_each(|attempt| check_debug(attempt));
}

#[track_caller]
fn check_response(response: &dyn Debug, extensions: &Extensions) {
    check_debug(response);
    check_debug(extensions);
    Report::from_extensions(extensions).into_iter().for_each(check_report);
}

/// Sends the request. Checks its response, and returns it.
async fn send(request: RequestBuilder) -> client::Response {
    let response = request.await.unwrap();
    check_response(&response, response.extensions());
    response
}

/// Runs the test until every task it spawned has ended, and then asserts that the log does not show the key.
fn run(mut builder: Builder, test: impl Future<Output = ()>) {
    LazyLock::force(&LOG);
    let runtime = builder.enable_all().build().unwrap();
    runtime.block_on(test);
    drop(runtime);
    let records = LOG.take();
    let targets = records.iter().filter_map(|record| record.split(' ').nth(2).map(str::to_owned));
    TARGETS.lock().unwrap().extend(targets);
    let log = records.join("\n");
    check_text("the log", &log);
    assert!(!log.contains("peer=Server"), "captured a server's log, which may contain the key");
}

/// Runs a test with real sockets, on two threads.
fn run_with_sockets(test: impl Future<Output = ()>) {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2);
    run(builder, server::within(test));
}

fn run_paused(test: impl Future<Output = ()>) {
    let mut builder = Builder::new_current_thread();
    builder.start_paused(true);
    run(builder, test);
}

/// Servers receive the key and may log it. They run on a separate thread, whose log is not captured.
static SERVERS: LazyLock<Handle> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    std::thread::spawn(move || {
        tracing::subscriber::with_default(NoSubscriber::new(), || {
            runtime.block_on(std::future::pending::<()>());
        });
    });
    handle
});

async fn on_server_thread<T: Send + 'static>(server: impl Future<Output = T> + Send + 'static) -> T {
    SERVERS.spawn(server).await.unwrap()
}

async fn server_with_statuses<const N: usize>(wire: Wire, statuses: [u16; N]) -> Server {
    on_server_thread(Server::with_statuses(wire, statuses)).await
}

/// Where a stack puts the key in its requests.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Placement {
    Bearer,
    Header,
    Basic,
    Query,
}

const PLACEMENTS: [Placement; 4] = [Placement::Bearer, Placement::Header, Placement::Basic, Placement::Query];

impl Placement {
    fn apply_to(self, builder: StackBuilder) -> StackBuilder {
        match self {
            Self::Bearer => builder,
            Self::Header => builder.with_key_placement("header:x-api-key".parse().unwrap()),
            Self::Basic => builder.with_key_placement("basic:ann".parse().unwrap()),
            Self::Query => builder.with_key_placement("query:api_key".parse().unwrap()),
        }
    }

    /// Returns whether the server received the key. A test without a key in its requests could find no leak.
    fn has_key(self, seen: &Seen) -> bool {
        let header = match self {
            Self::Bearer | Self::Basic => "authorization",
            Self::Header => "x-api-key",
            Self::Query => return SEARCH.find(seen.path_and_query()).is_some(),
        };
        seen.header(header).is_some_and(|value| SEARCH.find(value).is_some())
    }
}

/// Configures three attempts with a backoff of at most 5 ms, and a limiter that does not pause after a 503.
fn without_waits(builder: StackBuilder) -> StackBuilder {
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(5)).unwrap();
    let limiter = LocalLimiter::without_quota().with_throttle_pause(Duration::ZERO).unwrap();
    builder
        .with_limiter(limiter)
        .with_retry(RetryLayer::new().with_backoff(backoff).with_throttled_backoff(backoff))
}

/// Returns the builder of a whole stack with the key. Also checks the `Debug` output of the builder.
fn stack_builder(url: &str, placement: Placement) -> StackBuilder {
    let builder = preset::realtime_messaging(url).unwrap().with_api_key(key());
    let builder = placement.apply_to(without_waits(builder));
    check_debug(&builder);
    check_debug(&builder.layer().unwrap());
    builder
}

fn client(server: &Server, placement: Placement) -> Client {
    let client = stack_builder(&server.url(), placement).client().unwrap();
    check_debug(&client);
    client
}

/// Returns a key source. Each refresh returns another [`numbered_key`], which is valid for an hour.
fn refreshing_key() -> RefreshingKey {
    let number = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let keys = RefreshingKey::new(move || {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async move {
            let fresh = FreshKey::new(ApiKey::new(numbered_key(number))?);
            Ok::<_, tower_outbound::BoxError>(fresh.with_lifetime(Duration::from_secs(3_600)))
        }
    });
    let backoff = ExponentialBackoff::new(Duration::from_secs(1), Duration::from_secs(20)).unwrap();
    keys.with_backoff(backoff.with_jitter(Jitter::none()))
}

/// If the log capture or the search missed a part of the log, no test would find a leak in that part.
#[test]
fn log_capture_covers_every_crate_and_finds_planted_leaks() {
    run_with_sockets(async {
        let server = server_with_statuses(Wire::Http2, [200]).await;
        let transport = TransportConfig::new().with_http2_prior_knowledge();
        let builder = stack_builder(&server.url(), Placement::Bearer);
        let client = builder.client_with_transport(transport).unwrap();
        client.get("/v1").await.unwrap();
        assert!(Placement::Bearer.has_key(&server.seen()[0]));
    });
    let targets = TARGETS.lock().unwrap().clone();
    for expected in ["tower_outbound::call", "tower_outbound::attempt_span", "hyper_util::", "h2::"] {
        let is_captured = targets.iter().any(|target| target.starts_with(expected));
        assert!(is_captured, "{expected} is not in {targets:?}");
    }

    // The planted leaks go to a separate log, so that other tests do not find them.
    let (log, subscriber) = Capture::subscriber(LevelFilter::TRACE);
    let planted = "planted: ".to_owned() + KEY;
    const REDACTED: &str = "redacted key";
    type Leak<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let leaks: [Leak<'_>; 5] = [
        ("event", Box::new(|| tracing::trace!(target: "h2::x", value = ?planted, "text"))),
        ("message", Box::new(|| tracing::error!("text {planted}"))),
        ("span", Box::new(|| drop(tracing::debug_span!("named", planted)))),
        (
            "overwritten field",
            Box::new(|| {
                let span = tracing::info_span!("named", field = tracing::field::Empty);
                span.record("field", planted.as_str());
                span.record("field", "harmless");
            }),
        ),
        (REDACTED, Box::new(|| tracing::info!(value = ?key(), "text"))),
    ];
    tracing::subscriber::with_default(subscriber, || {
        for (name, leak) in leaks {
            leak();
            let records = log.take();
            let found = records.iter().any(|record| SEARCH.find(record).is_some());
            assert_eq!((records.is_empty(), found), (false, name != REDACTED), "{name}: {records:?}");
        }
    });
}
