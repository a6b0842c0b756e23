//! The key goes to its own origin, and nowhere else: whole stacks run with every subscriber's field of every crate
//! captured, through all that can become of a call, and nothing of the key is in what was logged, in `Debug` and
//! `Display` of what is public, in an error's chain, in a report or in a panic's message.

mod answers;
#[cfg(feature = "json")]
mod echoes;
mod failures;
mod panics;
pub(crate) mod search;
mod settings;
#[cfg(feature = "rustls")]
mod tls;
mod types;

use crate::support::{self as probe, capture, certificate, server};
use std::{
    any::Any,
    collections::BTreeSet,
    error::Error as StdError,
    fmt::{Debug, Display},
    future::Future,
    panic,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use http::Response;
use tokio::runtime::{Builder, Handle};
use tower_outbound::{
    ApiKey, Client, Error, ExponentialBackoff, Jitter, Report,
    auth::{FreshKey, RefreshingKey},
    preset,
    retry::RetryLayer,
    stack::StackBuilder,
};
use tracing::{level_filters::LevelFilter, subscriber::NoSubscriber};
use tracing_subscriber::util::SubscriberInitExt;

use self::{
    super::support::server::{Seen, Server, Wire, reply},
    capture::Capture,
    search::Search,
};

/// With what base64, percent-encoding and `Debug` change, at both ends.
const KEY: &str = "k3y/+=%~&\"\\5ecr3t?of>the<tests\\\"&~%=+/3nd";

/// What a ready client may be for: without TLS nothing but loopback.
const SITE: &str = if cfg!(feature = "rustls") { "https://host" } else { "http://127.0.0.1:9" };

/// Of which the middle differs.
fn another_key(number: usize) -> String {
    KEY.replace("of>the<tests", &format!("number{number}"))
}

fn key() -> ApiKey {
    ApiKey::new(KEY).unwrap()
}

static SEARCH: LazyLock<Search> = LazyLock::new(|| Search::new(KEY));

/// What is heard of all threads but those of the servers.
static LOG: LazyLock<Capture> = LazyLock::new(|| {
    let (log, subscriber) = Capture::subscriber(LevelFilter::TRACE);
    // What speaks to the `log` crate is heard, too.
    subscriber.init();
    let (heard, before) = (log.clone(), panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        // A failure of a test that tells what was found must not be found itself.
        if text_of(panic.payload()).is_none_or(|text| !text.starts_with(FOUND)) {
            heard.add(format!("panic: {panic} {panic:?}"));
        }
        before(panic);
    }));
    log
});

/// Targets heard up to now; the log itself is forgotten when it was searched.
static TARGETS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

const FOUND: &str = "the key is shown";

fn text_of(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied())
}

/// Nothing of the key is in it.
#[track_caller]
fn search(what: &str, text: &str) {
    if let Some(found) = SEARCH.find(text) {
        panic!("{FOUND} in {what}, {found}");
    }
}

#[track_caller]
fn hidden(shown: &dyn Debug) {
    search("debug", &format!("{shown:?}"));
    search("debug", &format!("{shown:#?}"));
}

#[track_caller]
fn unsaid(shown: &dyn Display) {
    search("display", &format!("{shown}"));
    search("display", &format!("{shown:#}"));
}

/// The error and what it leads to.
#[track_caller]
fn chain(error: &(dyn StdError + 'static)) {
    let mut next = Some(error);
    while let Some(error) = next {
        hidden(&error);
        unsaid(&error);
        next = error.source();
    }
}

#[track_caller]
fn failed(error: &Error) {
    chain(error);
    hidden(&error.request_id());
    error.report().into_iter().for_each(reported);
}

#[track_caller]
fn reported(report: &Report) {
    hidden(report);
    unsaid(report);
    report.attempts().iter().for_each(|attempt| hidden(attempt));
}

/// All of an answer that a caller has of it.
#[track_caller]
fn answered<B: Debug>(response: &Response<B>) {
    hidden(response);
    hidden(response.extensions());
    Report::from_response(response).into_iter().for_each(reported);
}

#[track_caller]
fn ended<B: Debug>(result: &Result<Response<B>, Error>) {
    match result {
        Ok(response) => answered(response),
        Err(error) => failed(error),
    }
}

/// Runs it to the end of everything that it has started, and searches what was heard meanwhile.
fn run(mut builder: Builder, test: impl Future<Output = ()>) {
    LazyLock::force(&LOG);
    let runtime = builder.enable_all().build().unwrap();
    runtime.block_on(test);
    drop(runtime);
    let records = LOG.take();
    let targets = records.iter().filter_map(|record| record.split(' ').nth(2).map(str::to_owned));
    TARGETS.lock().unwrap().extend(targets);
    let log = records.join("\n");
    search("the log", &log);
    assert!(!log.contains("peer=Server"), "a server was heard, which may log what it is sent");
}

/// With real sockets, on several threads.
fn live(test: impl Future<Output = ()>) {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2);
    run(builder, super::support::server::within(test));
}

fn paused(test: impl Future<Output = ()>) {
    let mut builder = Builder::new_current_thread();
    builder.start_paused(true);
    run(builder, test);
}

/// The servers hear, and may log, the key: on a thread of their own, to which nobody listens.
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

async fn serve<T: Send + 'static>(server: impl Future<Output = T> + Send + 'static) -> T {
    SERVERS.spawn(server).await.unwrap()
}

async fn statuses<const N: usize>(wire: Wire, statuses: [u16; N]) -> Server {
    serve(Server::with_statuses(wire, statuses)).await
}

/// The ways in which a preset sends its key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Bearer,
    Header,
    Basic,
    Query,
}

const PLACES: [Place; 4] = [Place::Bearer, Place::Header, Place::Basic, Place::Query];

impl Place {
    fn of(self, preset: StackBuilder) -> StackBuilder {
        match self {
            Self::Bearer => preset,
            Self::Header => preset.with_key_placement("header:x-api-key".parse().unwrap()),
            Self::Basic => preset.with_key_placement("basic:ann".parse().unwrap()),
            Self::Query => preset.with_key_placement("query:api_key".parse().unwrap()),
        }
    }

    /// Whether the server was sent the key: else nothing of it could be seen.
    fn reached(self, seen: &Seen) -> bool {
        let header = match self {
            Self::Bearer | Self::Basic => "authorization",
            Self::Header => "x-api-key",
            Self::Query => return SEARCH.find(seen.path_and_query()).is_some(),
        };
        seen.header(header).is_some_and(|value| SEARCH.find(value).is_some())
    }
}

/// Three attempts, next to no pause between them.
fn quick(preset: StackBuilder) -> StackBuilder {
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(5)).unwrap();
    preset.with_retry(RetryLayer::new().with_backoff(backoff).with_throttled_backoff(backoff))
}

/// The whole stack, with its key in this place.
fn preset(url: &str, place: Place) -> StackBuilder {
    let preset = place.of(quick(preset::realtime_messaging(url).unwrap().with_api_key(key())));
    hidden(&preset);
    hidden(&preset.layer().unwrap());
    preset
}

fn client(server: &Server, place: Place) -> Client {
    let client = preset(&server.url(), place).client().unwrap();
    hidden(&client);
    client
}

/// One key after the other, each good for an hour.
fn provided() -> RefreshingKey {
    let number = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let provided = RefreshingKey::new(move || {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async move {
            let fresh = FreshKey::new(ApiKey::new(another_key(number))?);
            Ok::<_, tower_outbound::BoxError>(fresh.with_lifetime(Duration::from_secs(3_600)))
        }
    });
    let backoff = ExponentialBackoff::new(Duration::from_secs(1), Duration::from_secs(20)).unwrap();
    provided.with_backoff(backoff.with_jitter(Jitter::none()))
}

/// The capture hears what it is meant to hear, and would tell.
#[test]
fn every_crate_is_heard_and_a_leak_would_be_found() {
    live(async {
        let server = statuses(Wire::Http2, [200]).await;
        let transport = tower_outbound::client::Transport::new().with_http2_prior_knowledge();
        let client = preset(&server.url(), Place::Bearer).client_with_transport(transport).unwrap();
        client.get("/v1").await.unwrap();
        assert!(Place::Bearer.reached(&server.seen()[0]));
    });
    let targets = TARGETS.lock().unwrap().clone();
    for heard in ["tower_outbound::call", "tower_outbound::attempt_span", "hyper_util::", "h2::"] {
        assert!(targets.iter().any(|target| target.starts_with(heard)), "{heard} is not in {targets:?}");
    }

    // Of another log, so that no other test finds it.
    let (log, subscriber) = Capture::subscriber(LevelFilter::TRACE);
    let planted = "planted: ".to_owned() + KEY;
    type Leak<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let leaks: [Leak<'_>; 5] = [
        ("event", Box::new(|| tracing::trace!(target: "h2::x", value = ?planted, "text"))),
        ("message", Box::new(|| tracing::error!("text {planted}"))),
        ("span", Box::new(|| drop(tracing::debug_span!("named", planted)))),
        (
            "replaced",
            Box::new(|| {
                let span = tracing::info_span!("named", field = tracing::field::Empty);
                span.record("field", planted.as_str());
                span.record("field", "harmless");
            }),
        ),
        ("nothing", Box::new(|| tracing::info!(value = ?key(), "text"))),
    ];
    tracing::subscriber::with_default(subscriber, || {
        for (name, leak) in leaks {
            leak();
            let heard = log.take();
            let found = heard.iter().any(|record| SEARCH.find(record).is_some());
            assert_eq!((heard.is_empty(), found), (false, name != "nothing"), "{name}: {heard:?}");
        }
    });
}
