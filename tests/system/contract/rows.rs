//! The table: each layer of the crate, in each of its ways.

use std::{
    env, fs,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use http::{HeaderName, request::Parts};
use tower::ServiceBuilder;
use tower_outbound::{
    ApiKey, BoxError, ExponentialBackoff, InvalidConfig, Jitter, Quota,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, FreshKey, KeySource, Origin, RefreshingKey, Sign, SignLayer, Signing},
    limit::{AnyLimiter, Keyed, KeyedBucket, RateLimitLayer, SlidingWindow, TokenBucket},
    preset,
    request_id::RequestIdLayer,
    retry::{Budget, RetryLayer},
    stack::{StackBuilder, StackLayer},
    test_util::deterministic,
    timeout::{BodyIdleTimeoutLayer, TimeoutLayer},
};

use super::{
    URI,
    books::Books,
    probe::{millis, secs},
    row::{
        Row,
        Unready::{AfterAttempts, InCall, Passes},
        row,
    },
};

fn plain<L>(layer: L) -> (L, Books) {
    (layer, Books::default())
}

fn key() -> ApiKey {
    ApiKey::new("s3cret").unwrap()
}

fn origin() -> Origin {
    Origin::parse(URI).unwrap()
}

fn auth(keys: impl Into<KeySource>) -> (AuthLayer, Books) {
    plain(AuthLayer::new(keys, origin()).unwrap())
}

fn bearer() -> (AuthLayer, Books) {
    auth(key())
}

/// Takes 20 ms, for a key of 2 s.
fn provided() -> KeySource {
    let provider = || async {
        tokio::time::sleep(millis(20)).await;
        Ok::<_, BoxError>(FreshKey::new(key()).with_lifetime(secs(2)))
    };
    RefreshingKey::new(provider).into()
}

/// A file of its own, gone with it.
struct Secret(PathBuf);

impl Secret {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tower-outbound-contract-{}-{number}", std::process::id());
        let secret = Self(env::temp_dir().join(name));
        fs::write(&secret.0, "s3cret\n").unwrap();
        secret
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn from_file() -> (AuthLayer, Books) {
    let secret = Secret::new();
    let keys = KeySource::from_file_every(&secret.0, secs(1)).unwrap();
    let (layer, books) = auth(keys);
    (layer, Books { keeps: Some(Box::new(secret)), ..books })
}

/// Takes 20 ms, and reads so much of the body.
struct Signs(Option<usize>);

impl Sign for Signs {
    fn body_limit(&self) -> Option<usize> {
        self.0
    }

    fn sign<'a>(&'a self, head: &'a mut Parts, body: Option<&'a Bytes>) -> Signing<'a> {
        Box::pin(async move {
            tokio::time::sleep(millis(20)).await;
            head.headers.insert("x-length", body.map_or(0, Bytes::len).into());
            Ok(())
        })
    }
}

fn signing(limit: Option<usize>) -> (SignLayer, Books) {
    plain(SignLayer::new(Signs(limit), origin()).unwrap())
}

/// 12 in 9 s, with a margin of 1 s: 2 permits at once, then one per second.
fn quota() -> Quota {
    with_margin(Quota::new(12, secs(9)).and_then(|quota| quota.with_burst(2)))
}

/// A permit stays valid for 250 ms until its task is polled.
fn with_margin(quota: Result<Quota, InvalidConfig>) -> Quota {
    quota.and_then(|quota| quota.with_margin(secs(1))).unwrap()
}

fn bucket() -> (TokenBucket, Books) {
    let bucket = TokenBucket::new(quota());
    let books = bucket.clone();
    (bucket, Books::limiter(quota(), move || books.snapshot()))
}

/// Where a window is counted, all may go at once: so few that there is a line.
fn window() -> (SlidingWindow, Books) {
    let quota = with_margin(Quota::new(2, secs(1)));
    let window = SlidingWindow::new(quota);
    let books = window.clone();
    (window, Books::limiter(quota, move || books.snapshot()))
}

fn keyed() -> (RateLimitLayer<KeyedBucket<String>>, Books) {
    let host = |head: tower_outbound::call::RequestHead<'_>| head.uri.host().unwrap_or_default().to_owned();
    let keyed = Keyed::new(host, |_| TokenBucket::new(quota()));
    let books = keyed.clone();
    let snapshot = move || books.limiter(&"api.example.com".to_owned()).unwrap().snapshot();
    (RateLimitLayer::new(keyed), Books::limiter(quota(), snapshot))
}

fn retry() -> (RetryLayer, Books) {
    let backoff = ExponentialBackoff::new(millis(60), secs(1)).unwrap().with_jitter(Jitter::none());
    let budget = Budget::new();
    let layer = RetryLayer::new().with_backoff(backoff).with_budget(budget.clone());
    (layer, Books { budget: Some(budget), ..Books::default() })
}

/// By its own settings but for the quota, with nothing left to chance.
fn preset(preset: StackBuilder) -> (StackLayer, Books) {
    let preset = deterministic(preset.with_quota(quota()), 7);
    let limiter = preset.limiter().clone();
    let snapshot = move || limiter.downcast_ref::<TokenBucket>().unwrap().snapshot();
    (preset.layer().unwrap(), Books::limiter(quota(), snapshot))
}

fn with_all_that_a_preset_takes() -> (StackLayer, Books) {
    let (window, books) = window();
    let preset = preset::currency_rates(URI).unwrap().with_keys(provided()).with_limiter(window);
    let (retry, budget) = retry();
    let preset = preset.with_retry(retry).with_body_idle_timeout(secs(60));
    (deterministic(preset, 7).layer().unwrap(), Books { budget: budget.budget, ..books })
}

pub(crate) fn rows() -> Vec<Row> {
    let (failed, unready) = ("other", "not_ready");
    let limited = |row: Row| row.unready(InCall(unready));
    let presets = [preset::currency_rates, preset::email_delivery, preset::realtime_messaging];
    let mut rows = vec![
        row("a fixed key", bearer),
        row("a fixed key, elsewhere", bearer).elsewhere(),
        row("in the query", || {
            let (layer, books) = bearer();
            (layer.with_placement("query:api_key".parse().unwrap()), books)
        }),
        row("a key from a provider", || auth(provided())),
        row("a key from a provider, elsewhere", || auth(provided())).elsewhere(),
        row("a key from a file", from_file),
        row("head and body", || signing(Some(64))),
        row("the head", || signing(None)),
        row("elsewhere", || signing(Some(64))).elsewhere(),
        limited(row("TokenBucket", || {
            let (limiter, books) = bucket();
            (RateLimitLayer::new(limiter), books)
        })),
        limited(row("SlidingWindow", || {
            let (limiter, books) = window();
            (RateLimitLayer::new(limiter), books)
        })),
        limited(row("AnyLimiter", || {
            let (limiter, books) = bucket();
            (RateLimitLayer::new(AnyLimiter::new(limiter)), books)
        })),
        limited(row("none", || plain(RateLimitLayer::new(TokenBucket::unlimited())))),
        limited(row("Keyed", keyed)),
        row("3 attempts", retry).unready(AfterAttempts(failed)),
        row("an id", || plain(RequestIdLayer::new())),
        row("a span", || plain(AttemptSpanLayer::new())),
        row("its number in a header", || {
            plain(AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt")))
        }),
        row("total", || plain(TimeoutLayer::total(secs(60)).unwrap())),
        row("of an attempt", || plain(TimeoutLayer::per_attempt(secs(60)).unwrap())),
        row("60 s", || plain(BodyIdleTimeoutLayer::new(secs(60)).unwrap())).unready(Passes),
        row("none", || plain(BodyIdleTimeoutLayer::none())).unready(Passes),
        row("a preset without a credential", || {
            preset(StackBuilder::new(URI).unwrap().with_name("custom").without_credential())
        })
        .unready(AfterAttempts(unready)),
        row("all that a preset takes", with_all_that_a_preset_takes).unready(AfterAttempts(unready)),
        // As who builds a stack by hand may do it: another order, and one layer twice.
        row("a stack by hand", || {
            let (limiter, books) = bucket();
            let limit = RateLimitLayer::new(limiter);
            let (retry, budget) = retry();
            let total = TimeoutLayer::total(secs(60)).unwrap();
            let stack = ServiceBuilder::new().layer(total).layer(retry).layer(bearer().0).layer(limit);
            let attempt = TimeoutLayer::per_attempt(secs(60)).unwrap();
            (stack.layer(attempt).layer(AttemptSpanLayer::new()), Books { budget: budget.budget, ..books })
        })
        .unready(AfterAttempts(unready)),
    ];
    rows.extend(presets.map(|make| {
        let name = make(URI).unwrap().name().to_owned();
        let made = move || preset(make(URI).unwrap().with_api_key(key()));
        row(&name, made).unready(AfterAttempts(unready))
    }));
    rows
}
