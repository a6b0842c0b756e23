use std::{collections::BTreeMap, time::Duration};

use hyper::{HeaderMap, Method, body::Bytes, http::request};
use tokio::time::Instant;
use tower_outbound::test_util::Arrivals;

use super::MockResponse;

/// The requests that a mock server received, in the order of arrival.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestLog {
    /// The number of accepted connections.
    pub(crate) connections: usize,
    pub(crate) requests: Vec<ReceivedRequest>,
}

/// A request that the mock server received.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    /// The request's number, counted from 1. The response's header `request-id` is `srv-<number>`.
    pub(crate) number: usize,
    /// The time when the request arrived.
    pub(crate) at: Instant,
    pub(crate) method: Method,
    /// The path and query of the request.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    /// The request's body, which is empty until the server has read it.
    pub(crate) body: Bytes,
    /// The response that the server sent or will send to this request.
    pub(crate) response: MockResponse,
    /// The time when the server responded, or `None` if the server has not responded yet.
    pub(crate) responded_at: Option<Instant>,
}

impl ReceivedRequest {
    pub(super) fn new(number: usize, at: Instant, head: request::Parts) -> Self {
        let target = head.uri.path_and_query().map_or("", |target| target.as_str()).to_owned();
        Self {
            number,
            at,
            method: head.method,
            target,
            headers: head.headers,
            body: Bytes::new(),
            response: MockResponse::Ok,
            responded_at: None,
        }
    }

    /// Returns the value of the header, or an empty string if the request has no such header.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the value of the request's header `x-request-id`.
    pub(crate) fn request_id(&self) -> &str {
        self.header("x-request-id")
    }
}

impl RequestLog {
    /// Returns the number of requests whose response satisfies `matches`.
    pub(crate) fn count(&self, matches: impl Fn(MockResponse) -> bool) -> usize {
        self.requests.iter().filter(|request| matches(request.response)).count()
    }

    /// Returns the number of requests that exceeded the quota.
    pub(crate) fn violations(&self) -> usize {
        self.count(|response| matches!(response, MockResponse::OverQuota { .. }))
    }

    pub(crate) fn unauthorized(&self) -> usize {
        self.count(|response| response == MockResponse::Unauthorized)
    }

    /// Returns the number of responses by status. A dropped request counts as status 0.
    pub(crate) fn statuses(&self) -> BTreeMap<u16, usize> {
        let mut counts = BTreeMap::new();
        for request in &self.requests {
            *counts.entry(request.response.status().map_or(0, |status| status.as_u16())).or_default() += 1;
        }
        counts
    }

    /// Returns the number of requests by `x-request-id`, which all attempts of a call share.
    pub(crate) fn request_ids(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for request in &self.requests {
            *counts.entry(request.request_id().to_owned()).or_default() += 1;
        }
        counts
    }

    /// Returns the largest number of arrivals in any window of this length.
    pub(crate) fn most_in(&self, window: Duration) -> u64 {
        self.requests.iter().map(|request| request.at).collect::<Arrivals>().most_in(window)
    }

    /// If a request that arrives now exceeds `limit` per `window`, returns the `Retry-After` for that request in whole
    /// seconds.
    pub(super) fn retry_after_if_over(
        &self,
        limit: usize,
        window: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let first = self.requests.len().checked_sub(limit)?;
        let free = self.requests.get(first)?.at + window;
        let pause = free.checked_duration_since(now).filter(|pause| !pause.is_zero())?;
        Some(Duration::from_secs(pause.as_secs() + 1))
    }
}
