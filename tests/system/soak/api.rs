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

/// The limits between which an operator switches. Two APIs have quotas so small that their callers always queue.
const LIMITS: [[u32; 2]; APIS] = [[40, 80], [300, 600], [250, 400], [30, 60]];
/// The limit of each API in the recovery phase.
const RECOVERY_LIMIT: u32 = 900;

fn quota(limit: u32) -> Quota {
    Quota::new(limit, Duration::from_millis(1_500)).unwrap().with_margin(Duration::from_secs(1)).unwrap()
}

/// The client of one API.
pub(crate) struct Api {
    pub(crate) number: usize,
    pub(crate) client: Client,
    pub(crate) budget: Budget,
    pub(crate) keys: Arc<KeyStore>,
    limiter: LocalLimiter,
}

impl Api {
    pub(crate) fn new(number: usize, server: &Server, seed: u64) -> Self {
        let (url, first) = (server.url(number), quota(LIMITS[number][0]));
        let limiter = match number {
            SHARED => LocalLimiter::sliding_window(first),
            _ => LocalLimiter::paced_window(first),
        };
        let limiter = limiter.with_server_remaining();
        let placement = |builder: StackBuilder, text: &str| builder.with_key_placement(text.parse().unwrap());
        let builder = match number {
            0 => preset::currency_rates(&url).unwrap(),
            1 => preset::email_delivery(&url).unwrap(),
            2 => placement(preset::realtime_messaging(&url).unwrap(), "query:key"),
            _ => placement(StackBuilder::new(&url).unwrap().with_name("custom"), "header:x-api-key"),
        };
        let budget = Budget::new().with_capacity(140).unwrap();
        let builder = builder
            .with_limiter(limiter.clone())
            .with_keys(server.key_stores[number].source())
            .with_retry(retry_layer(number, seed, budget.clone()))
            .with_attempt_span(
                AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt")),
            )
            .with_total_timeout(Duration::from_secs(2))
            .with_attempt_timeout(Duration::from_millis(700));
        // Without an idle timeout, only the callers limit the time for the body.
        let builder = match number {
            0 => builder,
            _ => builder.with_body_idle_timeout(Duration::from_millis(200)),
        };
        let client = builder.client_with_transport(server.transport.clone()).unwrap();
        Self { number, client, budget, keys: Arc::clone(&server.key_stores[number]), limiter }
    }

    /// Sets the first or the second quota of the API.
    pub(crate) fn set_quota(&self, index: usize) {
        self.limiter.set_quotas(quota(LIMITS[self.number][index]));
    }

    pub(crate) fn recover(&self) {
        self.limiter.set_quotas(quota(RECOVERY_LIMIT));
        self.limiter.resume();
    }

    pub(crate) fn resume(&self) {
        self.limiter.resume();
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.limiter.snapshot()
    }

    /// Returns whether the limiter is in the same state as before the first request, under the quota of the recovery
    /// phase.
    pub(crate) fn is_idle(&self) -> bool {
        let (quota, now) = (quota(RECOVERY_LIMIT), self.snapshot());
        let available = if self.number == SHARED { quota.limit() } else { quota.burst() };
        (now.queued, now.awaiting_response, now.paused_until, now.available) == (0, 0, None, available)
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
