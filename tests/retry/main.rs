//! Tests the retry layer over a scripted service on tokio's paused clock. The module `transport` tests the retry layer
//! over real connections.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod backoff;
mod budget;
mod cancellation;
mod case_runner;
mod classify;
mod deadline;
mod decide;
mod decision_table;
mod delivery;
mod drain;
mod grpc;
mod idempotency;
mod key_replaced;
mod limiter;
mod properties;
mod readiness;
mod recorded_body;
mod redaction;
mod rejected;
mod report;
mod request;
mod requested_delay;
mod retry_cost;
mod settings;
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "client")]
mod transport;

use http::Response;
use tower_outbound::{
    Report,
    call::RequestHead,
    retry::{AttemptResult, Classify, DefaultClassifier, RetryDecision},
};

const URI: &str = "https://api.example.com/v1";

/// The names and values of response headers.
type HeaderPairs = &'static [(&'static str, &'static str)];

/// The `date` header of test responses whose `retry-after` header contains a date.
const DATE: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");

/// Returns the call report in the response's extensions.
fn report<B>(response: &Response<B>) -> &Report {
    response.extensions().get().expect("the response should have a report")
}

/// Returns a classifier that calls `decide`, and applies [`DefaultClassifier`] if `decide` returns `None`.
fn classifier<F>(decide: F) -> impl Classify + 'static
where
    F: Fn(RequestHead<'_>, &AttemptResult<'_>) -> Option<RetryDecision> + Send + Sync + 'static,
{
    struct Classifier<F>(F);

    impl<F> Classify for Classifier<F>
    where
        F: Fn(RequestHead<'_>, &AttemptResult<'_>) -> Option<RetryDecision> + Send + Sync,
    {
        fn classify(&self, request: RequestHead<'_>, attempt: &AttemptResult<'_>) -> RetryDecision {
            (self.0)(request, attempt).unwrap_or_else(|| DefaultClassifier.classify(request, attempt))
        }
    }

    Classifier(decide)
}
