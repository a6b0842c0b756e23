//! The clients under test: the three presets, and a custom stack with a sliding window. Each client calls its own API.

use std::{sync::Arc, time::Duration};

use http::HeaderName;
use tower_outbound::{
    Client, ExponentialBackoff, Quota,
    attempt_span::AttemptSpanLayer,
    limit::{LocalLimiter, Snapshot},
    preset,
    retry::{Budget, IdempotencyKey, RetryLayer},
    stack::StackBuilder,
};

use super::{key_store::KeyStore, server::Server};

/// The number of APIs.
pub(crate) const APIS: usize = 4;
/// The API that the callers of both threads use. Every other API is used by the callers of only one thread.
pub(crate) const SHARED: usize = 3;

const WINDOW: Duration = Duration::from_millis(1_500);
/// The margin of the presets' quotas.
const MARGIN: Duration = Duration::from_secs(1);

/// The client of one API.
pub(crate) struct Api {
    pub(crate) number: usize,
    pub(crate) client: Client,
    pub(crate) budget: Budget,
    pub(crate) keys: Arc<KeyStore>,
    limiter: LocalLimiter,
}

/// Returns three quotas of one API, which have the same window. The load phase uses a small and a large quota, and the
/// recovery phase uses the third quota.
///
/// Two APIs have quotas so small that their callers always queue. The quotas of the other APIs allow many requests.
fn quotas(api: usize) -> [Quota; 3] {
    let limits = [[40, 80, 900], [300, 600, 900], [250, 400, 900], [30, 60, 900]][api];
    limits.map(|limit| Quota::new(limit, WINDOW).unwrap().with_margin(MARGIN).unwrap())
}

/// The index of the recovery phase's quota in [`quotas`].
pub(crate) const RECOVERY_QUOTA: usize = 2;

impl Api {
    pub(crate) fn new(number: usize, server: &Server, seed: u64) -> Self {
        let keys = Arc::clone(server.key_store(number));
        let url = server.url(number);
        let [quota, ..] = quotas(number);
        let limiter = match number {
            ..=2 => LocalLimiter::paced_window(quota),
            _ => LocalLimiter::sliding_window(quota),
        };
        let limiter = limiter.with_server_remaining();
        let preset = match number {
            0 => preset::currency_rates(&url).unwrap().with_limiter(limiter.clone()),
            1 => preset::email_delivery(&url).unwrap().with_limiter(limiter.clone()),
            2 => preset::realtime_messaging(&url).unwrap().with_limiter(limiter.clone()),
            _ => StackBuilder::new(&url).unwrap().with_name("custom").with_limiter(limiter.clone()),
        };
        let preset = preset.with_keys(keys.source());
        let preset = match number {
            2 => preset.with_key_placement("query:key".parse().unwrap()),
            SHARED => preset.with_key_placement("header:x-api-key".parse().unwrap()),
            _ => preset,
        };
        let budget = Budget::new().with_capacity(140).unwrap();
        let preset = preset
            .with_retry(retry_layer(number, seed, budget.clone()))
            .with_attempt_span(
                AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt")),
            )
            .with_total_timeout(Duration::from_secs(2))
            .with_attempt_timeout(Duration::from_millis(700));
        // Without an idle timeout, only the callers limit the time for the body.
        let preset = match number {
            0 => preset,
            _ => preset.with_body_idle_timeout(Duration::from_millis(200)),
        };
        let client = preset.client_with_transport(server.transport()).unwrap();
        let api = Self { number, client, budget, keys, limiter };
        api.set_quota(0);
        api
    }

    /// Sets the quota with the index `index` in [`quotas`].
    pub(crate) fn set_quota(&self, index: usize) {
        self.limiter.set_quotas(quotas(self.number)[index]);
    }

    pub(crate) fn resume(&self) {
        self.limiter.resume();
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.limiter.snapshot()
    }

    /// Returns how many permits an idle limiter grants at once, under the quota with the index `index` in [`quotas`].
    pub(crate) fn idle_permits(&self, index: usize) -> u32 {
        let quota = quotas(self.number)[index];
        if self.number <= 2 { quota.burst() } else { quota.limit() }
    }
}

fn retry_layer(number: usize, seed: u64, budget: Budget) -> RetryLayer {
    let backoff =
        |from, to| ExponentialBackoff::new(Duration::from_millis(from), Duration::from_millis(to)).unwrap();
    let retry = RetryLayer::new()
        .with_seed(seed ^ number as u64)
        .with_budget(budget)
        .with_backoff(backoff(5, 50))
        .with_throttled_backoff(backoff(10, 100));
    match number {
        // The server of this API honours idempotency keys.
        1 => retry.with_honoured_idempotency_key(IdempotencyKey::bare()),
        _ => retry,
    }
}
