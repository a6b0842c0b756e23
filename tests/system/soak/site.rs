//! The services under test: the three presets, and one of its own over a sliding window.

use std::{sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, header::HeaderMap};
use tower_outbound::{
    Client, ExponentialBackoff, Quota,
    attempt_span::AttemptSpanLayer,
    call::RequestHead,
    limit::{SlidingWindow, Snapshot, TokenBucket},
    preset,
    retry::{AttemptResult, Budget, IdempotencyKey, RetryLayer},
    stack::StackBuilder,
};

use super::{
    keys::Vault,
    ledger::{Deed, Ledger, now, write},
    server::Server,
};

/// How many sites there are, and the one that both threads of callers share.
pub(crate) const SITES: usize = 4;
pub(crate) const SHARED: usize = 3;

const WINDOW: Duration = Duration::from_millis(1_500);
/// The margin of the presets' quotas.
pub(crate) const MARGIN: Duration = Duration::from_secs(1);

pub(crate) struct Site {
    pub(crate) number: usize,
    pub(crate) client: Client,
    pub(crate) budget: Budget,
    pub(crate) vault: Arc<Vault>,
    limiter: AnyOf,
    ledger: Arc<Ledger>,
}

enum AnyOf {
    Bucket(TokenBucket),
    Window(SlidingWindow),
}

/// Two are so small that their callers always wait, and two so large that much happens.
///
/// Two quotas of one window, the second the larger in all, so that no stretch with both has more than the second allows;
/// and a third for the calm after it.
pub(crate) fn quotas(site: usize) -> [Quota; 3] {
    let limits = [[40, 80, 900], [300, 600, 900], [250, 400, 900], [30, 60, 900]][site];
    limits.map(|limit| Quota::new(limit, WINDOW).unwrap().with_margin(MARGIN).unwrap())
}

pub(crate) const CALM: usize = 2;

impl Site {
    pub(crate) fn new(number: usize, server: &Server, seed: u64, ledger: &Arc<Ledger>) -> Self {
        let vault = Arc::clone(server.vault(number));
        let url = server.url(number);
        let [quota, ..] = quotas(number);
        let window = SlidingWindow::new(quota);
        let preset = match number {
            0 => preset::currency_rates(&url).unwrap().with_quota(quota),
            1 => preset::email_delivery(&url).unwrap().with_quota(quota),
            2 => preset::realtime_messaging(&url).unwrap().with_quota(quota),
            _ => StackBuilder::new(&url).unwrap().with_name("of_its_own").with_limiter(window.clone()),
        };
        let preset = preset.with_keys(vault.keys());
        let preset = match number {
            2 => preset.with_key_placement("query:key".parse().unwrap()),
            SHARED => preset.with_key_placement("header:x-api-key".parse().unwrap()),
            _ => preset,
        };
        let budget = Budget::new().with_capacity(140).unwrap();
        let preset = preset
            .with_retry(retry(number, seed, budget.clone(), ledger))
            .with_attempt_span(
                AttemptSpanLayer::new()
                    .with_attempt_header(HeaderName::from_static("x-attempt"))
                    .with_propagation(stamp),
            )
            .with_total_timeout(Duration::from_secs(2))
            .with_attempt_timeout(Duration::from_millis(700));
        // One without: its callers bound the body themselves.
        let preset = match number {
            0 => preset,
            _ => preset.with_body_idle_timeout(Duration::from_millis(200)),
        };
        let limiter = match preset.limiter().downcast_ref::<TokenBucket>() {
            Some(bucket) => AnyOf::Bucket(bucket.clone()),
            None => AnyOf::Window(window),
        };
        let client = preset.client_with_transport(server.transport()).unwrap();
        let site = Self { number, client, budget, vault, limiter, ledger: Arc::clone(ledger) };
        site.set_quota(0);
        site
    }

    pub(crate) fn set_quota(&self, which: usize) {
        let quota = quotas(self.number)[which];
        let deed = |at| Deed::Quota { site: self.number, at, limit: quota.limit() };
        // The smaller one holds from when it is said to be there, the larger from when it is on its way.
        let before = now();
        match &self.limiter {
            AnyOf::Bucket(bucket) => bucket.set_quotas([quota]),
            AnyOf::Window(window) => window.set_quotas([quota]),
        }
        write(|| self.ledger.deeds.lock().unwrap().push(deed(if which == 0 { now() } else { before })));
    }

    pub(crate) fn resume(&self) {
        // Written down first: what leaves from here on may.
        let deed = Deed::Resumed { site: self.number, at: now() };
        write(|| self.ledger.deeds.lock().unwrap().push(deed));
        match &self.limiter {
            AnyOf::Bucket(bucket) => bucket.resume(),
            AnyOf::Window(window) => window.resume(),
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        match &self.limiter {
            AnyOf::Bucket(bucket) => bucket.snapshot(),
            AnyOf::Window(window) => window.snapshot(),
        }
    }

    /// What may go at once when nothing was spent, by the quota with this number.
    pub(crate) fn full(&self, which: usize) -> u32 {
        let quota = quotas(self.number)[which];
        match &self.limiter {
            AnyOf::Bucket(_) => quota.burst(),
            AnyOf::Window(_) => quota.limit(),
        }
    }
}

/// The limiter stands right above this, so that the request has had its permit in this very poll of its task.
fn stamp(_: &tracing::Span, headers: &mut HeaderMap) {
    headers.insert("x-left", HeaderValue::from(now()));
}

fn retry(number: usize, seed: u64, budget: Budget, ledger: &Arc<Ledger>) -> RetryLayer {
    let backoff =
        |from, to| ExponentialBackoff::new(Duration::from_millis(from), Duration::from_millis(to)).unwrap();
    let ledger = Arc::clone(ledger);
    // The limiter has heard an answer in the same poll in which this is asked about it.
    let heard = move |_: RequestHead<'_>, attempt: &AttemptResult<'_>| {
        if let Some(headers) = attempt.headers {
            if let Some(at) = headers.get("x-ask").and_then(|at| at.to_str().ok()?.parse::<usize>().ok()) {
                ledger.asked.lock().unwrap()[at].heard.get_or_insert(now());
            }
        }
        false
    };
    let retry = RetryLayer::new()
        .with_seed(seed ^ number as u64)
        .with_budget(budget)
        .with_backoff(backoff(5, 50))
        .with_throttled_backoff(backoff(10, 100))
        .retry_if(heard);
    match number {
        // Whose server honours such keys.
        1 => retry.with_honoured_idempotency_key(IdempotencyKey::bare()),
        _ => retry,
    }
}
