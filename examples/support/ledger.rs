use std::{collections::BTreeMap, time::Duration};

use hyper::{HeaderMap, Method, body::Bytes, http::request};
use tokio::time::Instant;
use tower_outbound::test_util::Arrivals;

use super::Scripted;

/// All that reached the service, in the order of arrival.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    pub(crate) connections: usize,
    pub(crate) requests: Vec<Seen>,
}

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// From 1; the answer's header `request-id` is `srv-<number>`.
    pub(crate) number: usize,
    pub(crate) at: Instant,
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    /// Empty until it was read.
    pub(crate) body: Bytes,
    /// What came of it, or is about to.
    pub(crate) answer: Scripted,
    /// When the answer was handed to its connection; none before that.
    pub(crate) answered: Option<Instant>,
}

impl Seen {
    pub(super) fn new(number: usize, at: Instant, head: request::Parts) -> Self {
        let target = head.uri.path_and_query().map_or("", |target| target.as_str()).to_owned();
        Self {
            number,
            at,
            method: head.method,
            target,
            headers: head.headers,
            body: Bytes::new(),
            answer: Scripted::Ok,
            answered: None,
        }
    }

    /// A header's value, and nothing where it is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The caller's `x-request-id`.
    pub(crate) fn request_id(&self) -> &str {
        self.header("x-request-id")
    }
}

impl Ledger {
    pub(crate) fn count(&self, is: impl Fn(Scripted) -> bool) -> usize {
        self.requests.iter().filter(|seen| is(seen.answer)).count()
    }

    /// Arrivals that were one too many for a window.
    pub(crate) fn violations(&self) -> usize {
        self.count(|answer| matches!(answer, Scripted::OverQuota { .. }))
    }

    pub(crate) fn unauthorized(&self) -> usize {
        self.count(|answer| answer == Scripted::Unauthorized)
    }

    /// How often each status was answered; under 0, how often none was.
    pub(crate) fn statuses(&self) -> BTreeMap<u16, usize> {
        let mut counts = BTreeMap::new();
        for seen in &self.requests {
            *counts.entry(seen.answer.status().map_or(0, |status| status.as_u16())).or_default() += 1;
        }
        counts
    }

    /// How often each `x-request-id` came: once for every attempt of its call.
    pub(crate) fn request_ids(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for seen in &self.requests {
            *counts.entry(seen.request_id().to_owned()).or_default() += 1;
        }
        counts
    }

    /// The most arrivals in any window of this length.
    pub(crate) fn most_in(&self, window: Duration) -> u64 {
        self.requests.iter().map(|seen| seen.at).collect::<Arrivals>().most_in(window)
    }

    /// The pause to ask for, in whole seconds, if an arrival now is one more than `limit` in a window.
    pub(super) fn over(&self, limit: usize, window: Duration, now: Instant) -> Option<Duration> {
        let first = self.requests.len().checked_sub(limit)?;
        let free = self.requests.get(first)?.at + window;
        let pause = free.checked_duration_since(now).filter(|pause| !pause.is_zero())?;
        Some(Duration::from_secs(pause.as_secs() + 1))
    }
}
