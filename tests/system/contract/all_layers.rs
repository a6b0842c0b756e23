//! Lists every layer of the crate, in several configurations.

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
    auth::{AnySign, AuthLayer, BoxSignFuture, FreshKey, KeySource, Origin, RefreshingKey, Sign},
    limit::{AnyLimiter, Joint, Keyed, LocalLimiter, RateLimitLayer},
    preset,
    request_id::RequestIdLayer,
    retry::{Budget, RetryLayer},
    stack::{Pool, StackBuilder, StackLayer},
    test_util::{deterministic, limiter::RULES},
    timeout::{AttemptTimeoutLayer, BodyIdleTimeoutLayer, TotalTimeoutLayer},
};

use super::{
    URI,
    layer_case::{
        LayerCase,
        ReadinessErrors::{AfterAttempts, FromCall, Unchanged},
    },
    layer_state::LayerState,
};
use crate::support::{millis, secs};

fn stateless<L>(layer: L) -> (L, LayerState) {
    (layer, LayerState::default())
}

fn key() -> ApiKey {
    ApiKey::new("s3cret").unwrap()
}

fn origin() -> Origin {
    Origin::parse(URI).unwrap()
}

fn auth(keys: impl Into<KeySource>) -> (AuthLayer, LayerState) {
    stateless(AuthLayer::new(keys, origin()).unwrap())
}

fn fixed_key() -> (AuthLayer, LayerState) {
    auth(key())
}

/// Returns a key source whose refreshes take 20 ms. Each key is valid for 2 s.
fn refreshing_key() -> KeySource {
    let refresh = || async {
        tokio::time::sleep(millis(20)).await;
        Ok::<_, BoxError>(FreshKey::new(key()).with_lifetime(secs(2)))
    };
    RefreshingKey::new(refresh).into()
}

/// A temporary file that contains a key. Dropping the value deletes the file.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tower-outbound-contract-{}-{number}", std::process::id());
        let file = Self(env::temp_dir().join(name));
        fs::write(&file.0, "s3cret\n").unwrap();
        file
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn key_from_file() -> (AuthLayer, LayerState) {
    let file = KeyFile::new();
    let keys = KeySource::from_file_every(&file.0, secs(1)).unwrap();
    let (layer, state) = auth(keys);
    (layer, LayerState { resource: Some(Box::new(file)), ..state })
}

/// A signer that takes 20 ms per signature. The field is the signer's body limit in bytes, or `None` if the signer does
/// not read the body.
struct SlowSign(Option<usize>);

impl Sign for SlowSign {
    fn body_limit(&self) -> Option<usize> {
        self.0
    }

    fn sign<'a>(&'a self, head: &'a mut Parts, body: Option<&'a Bytes>) -> BoxSignFuture<'a> {
        Box::pin(async move {
            tokio::time::sleep(millis(20)).await;
            head.headers.insert("x-length", body.map_or(0, Bytes::len).into());
            Ok(())
        })
    }
}

fn sign(body_limit: Option<usize>) -> (AuthLayer<AnySign>, LayerState) {
    stateless(AuthLayer::from_sign(SlowSign(body_limit), origin()).unwrap())
}

/// Returns a quota of 12 permits in 9 s, with a margin of 1 s: a burst of 2 permits, then one permit per second.
fn quota() -> Quota {
    with_margin(Quota::new(12, secs(9)).and_then(|quota| quota.with_burst(2)))
}

/// Adds a margin of 1 s to the quota. With a margin of 1 s, a granted permit expires if its task is not polled within
/// 250 ms.
fn with_margin(quota: Result<Quota, InvalidConfig>) -> Quota {
    quota.and_then(|quota| quota.with_margin(secs(1))).unwrap()
}

fn token_bucket() -> (LocalLimiter, LayerState) {
    let bucket = LocalLimiter::token_bucket(quota());
    let state = bucket.clone();
    (bucket, LayerState::of_limiter(quota(), move || state.snapshot()))
}

/// Returns a sliding window with a limit of 2 permits per second. The small limit makes calls queue.
fn sliding_window() -> (LocalLimiter, LayerState) {
    let quota = with_margin(Quota::new(2, secs(1)));
    let window = LocalLimiter::sliding_window(quota);
    let state = window.clone();
    (window, LayerState::of_limiter(quota, move || state.snapshot()))
}

/// Returns a case for each rule of an in-process limiter.
fn rules() -> impl Iterator<Item = LayerCase> {
    RULES.into_iter().map(|(name, _, make)| {
        let limited = move || {
            let limiter = make(vec![quota()]);
            let state = limiter.clone();
            (RateLimitLayer::new(limiter), LayerState::of_limiter(quota(), move || state.snapshot()))
        };
        LayerCase::new(name, limited).with_readiness_errors(FromCall)
    })
}

fn joint_limiter() -> (RateLimitLayer<Joint<()>>, LayerState) {
    let (account, state) = token_bucket();
    let part = |_: &()| LocalLimiter::paced_window(quota());
    (RateLimitLayer::new(Joint::new(account, Keyed::new(|_| (), part))), state)
}

/// Returns a stack, of which a case takes a layer.
fn plain_stack() -> StackLayer {
    StackBuilder::new(URI).unwrap().with_api_key(key()).layer().unwrap()
}

fn keyed_limiter() -> (RateLimitLayer<Keyed<String>>, LayerState) {
    let host = |head: tower_outbound::call::RequestHead<'_>| head.uri.host().unwrap_or_default().to_owned();
    let keyed = Keyed::new(host, |_| LocalLimiter::token_bucket(quota()));
    let state = keyed.clone();
    let snapshot = move || state.limiter(&"api.example.com".to_owned()).unwrap().snapshot();
    (RateLimitLayer::new(keyed), LayerState::of_limiter(quota(), snapshot))
}

fn retry() -> (RetryLayer, LayerState) {
    let backoff = ExponentialBackoff::new(millis(60), secs(1)).unwrap().with_jitter(Jitter::none());
    let budget = Budget::new();
    let layer = RetryLayer::new().with_backoff(backoff).with_budget(budget.clone());
    (layer, LayerState { budget: Some(budget), ..LayerState::default() })
}

/// Builds the stack of `builder` with the quota of these tests and deterministic random values.
fn deterministic_stack(builder: StackBuilder) -> (StackLayer, LayerState) {
    let builder = deterministic(builder.with_quota(quota()), 7);
    let limiter = builder.limiter().clone();
    let snapshot = move || limiter.downcast_ref::<LocalLimiter>().unwrap().snapshot();
    (builder.layer().unwrap(), LayerState::of_limiter(quota(), snapshot))
}

fn stack_with_every_option() -> (StackLayer, LayerState) {
    let (window, state) = sliding_window();
    let builder = preset::currency_rates(URI).unwrap().with_keys(refreshing_key()).with_limiter(window);
    let (retry, budget) = retry();
    let builder = builder.with_retry(retry).with_body_idle_timeout(secs(60));
    (deterministic(builder, 7).layer().unwrap(), LayerState { budget: budget.budget, ..state })
}

/// The same stack with a pool, whose only member has the URL, the key and the limiter of the other stack.
fn stack_with_a_pool() -> (StackLayer, LayerState) {
    let (window, state) = sliding_window();
    let pool = Pool::new([(URI, refreshing_key(), window)]).unwrap();
    let (retry, budget) = retry();
    let builder = StackBuilder::new(URI).unwrap().with_pool(pool).with_retry(retry);
    (deterministic(builder, 7).layer().unwrap(), LayerState { budget: budget.budget, ..state })
}

pub(crate) fn all_layers() -> Vec<LayerCase> {
    let limited = |case: LayerCase| case.with_readiness_errors(FromCall);
    let mut cases = vec![
        LayerCase::new("fixed key", fixed_key),
        LayerCase::new("fixed key, foreign origin", fixed_key).with_foreign_uri(),
        LayerCase::new("key in the query", || {
            let (layer, state) = fixed_key();
            (layer.with_placement("query:api_key".parse().unwrap()), state)
        }),
        LayerCase::new("refreshing key", || auth(refreshing_key())),
        LayerCase::new("refreshing key, foreign origin", || auth(refreshing_key())).with_foreign_uri(),
        LayerCase::new("key from a file", key_from_file),
        LayerCase::new("signature of head and body", || sign(Some(64))),
        LayerCase::new("signature of the head", || sign(None)),
        LayerCase::new("signature of head and body, foreign origin", || sign(Some(64))).with_foreign_uri(),
        limited(LayerCase::new("a small limit", || {
            let (limiter, state) = sliding_window();
            (RateLimitLayer::new(limiter), state)
        })),
        limited(LayerCase::new("AnyLimiter", || {
            let (limiter, state) = token_bucket();
            (RateLimitLayer::new(AnyLimiter::new(limiter)), state)
        })),
        limited(LayerCase::new("unlimited", || {
            stateless(RateLimitLayer::new(LocalLimiter::without_quota()))
        })),
        limited(LayerCase::new("Keyed", keyed_limiter)),
        limited(LayerCase::new("Joint", joint_limiter)),
        LayerCase::new("default", || stateless(plain_stack().default_headers)),
        LayerCase::new("without a pool", || stateless(plain_stack().route)),
        LayerCase::new("3 attempts", retry).with_readiness_errors(AfterAttempts),
        LayerCase::new("default", || stateless(RequestIdLayer::new())),
        LayerCase::new("default", || stateless(AttemptSpanLayer::new())),
        LayerCase::new("attempt number in a header", || {
            stateless(AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt")))
        }),
        LayerCase::new("total", || stateless(TotalTimeoutLayer::new(secs(60)).unwrap())),
        LayerCase::new("per attempt", || stateless(AttemptTimeoutLayer::new(secs(60)).unwrap())),
        LayerCase::new("60 s", || stateless(BodyIdleTimeoutLayer::new(secs(60)).unwrap()))
            .with_readiness_errors(Unchanged),
        LayerCase::new("none", || stateless(BodyIdleTimeoutLayer::none())).with_readiness_errors(Unchanged),
        LayerCase::new("stack without a credential", || {
            deterministic_stack(StackBuilder::new(URI).unwrap().with_name("custom").without_credential())
        })
        .with_readiness_errors(AfterAttempts),
        LayerCase::new("stack with every option", stack_with_every_option)
            .with_readiness_errors(AfterAttempts),
        LayerCase::new("stack with a pool", stack_with_a_pool).with_readiness_errors(AfterAttempts),
        // This stack orders its layers differently from `StackBuilder`.
        LayerCase::new("stack by ServiceBuilder", || {
            let (limiter, state) = token_bucket();
            let limit = RateLimitLayer::new(limiter);
            let (retry, budget) = retry();
            let total = TotalTimeoutLayer::new(secs(60)).unwrap();
            let stack = ServiceBuilder::new().layer(total).layer(retry).layer(fixed_key().0).layer(limit);
            let attempt = AttemptTimeoutLayer::new(secs(60)).unwrap();
            let stack = stack.layer(attempt).layer(AttemptSpanLayer::new());
            (stack, LayerState { budget: budget.budget, ..state })
        })
        .with_readiness_errors(AfterAttempts),
    ];
    cases.extend(rules());
    cases.extend(preset::ALL.iter().map(|(name, preset)| {
        let stack = move || deterministic_stack(preset(URI).unwrap().with_api_key(key()));
        LayerCase::new(name, stack).with_readiness_errors(AfterAttempts)
    }));
    cases
}
