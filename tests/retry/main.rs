//! The retry layer, over doubles and on paused time. Also runs the limit and preset layers over the probe.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod budget;
mod corners;
mod deadline;
mod delivery;
mod drained;
mod dropped;
mod early;
mod grpc;
mod held;
mod jitter;
mod paid;
mod properties;
mod readiness;
mod rekeyed;
mod report;
mod request;
mod rules;
mod scenario;
#[path = "../support/mod.rs"]
mod support;
mod table;
#[cfg(feature = "client")]
mod transport;

use self::support::{Content, Scripted::Status, ScriptedService, get, millis};
use http::{Request, Response};
use tower::Service;
use tower_outbound::{
    Report,
    call::RequestHead,
    retry::{AttemptResult, Classify, DefaultClassifier, RetryDecision, RetryLayer},
};

const URI: &str = "https://api.example.com/v1";

type Headers = &'static [(&'static str, &'static str)];

const DATE: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");

#[tokio::test]
#[should_panic(expected = "called without having been polled ready")]
async fn the_probe_panics_on_a_call_that_was_not_polled_ready() {
    let mut ready = ScriptedService::new([Status(200)]);
    std::future::poll_fn(|cx| Service::<Request<Content>>::poll_ready(&mut ready, cx)).await.unwrap();
    let _ = ready.clone().call(get(URI)).await;
}

#[test]
fn a_retry_layer_shows_its_settings() {
    let layer =
        RetryLayer::new().with_max_attempts(7).unwrap().with_custom_backoff(|| std::iter::repeat(millis(1)));
    let shown = format!("{layer:?}");
    for part in [
        "max_attempts: 7",
        "transient: Custom",
        "throttled: ExponentialBackoff { base: 1s",
        "Budget { left: 500",
        "replay_limit: ",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let shown = format!("{:?}", RetryLayer::new().without_budget());
    assert!(
        shown.contains("budget: None") && shown.contains("transient: ExponentialBackoff { base: "),
        "{shown}"
    );
}

fn report<B>(response: &Response<B>) -> &Report {
    response.extensions().get().expect("no report in the response")
}

/// A classifier that decides by `rule`, and without its decision by the default.
fn rule<F>(rule: F) -> impl Classify + 'static
where
    F: Fn(RequestHead<'_>, &AttemptResult<'_>) -> Option<RetryDecision> + Send + Sync + 'static,
{
    struct Rule<F>(F);

    impl<F> Classify for Rule<F>
    where
        F: Fn(RequestHead<'_>, &AttemptResult<'_>) -> Option<RetryDecision> + Send + Sync,
    {
        fn classify(&self, request: RequestHead<'_>, attempt: &AttemptResult<'_>) -> RetryDecision {
            (self.0)(request, attempt).unwrap_or_else(|| DefaultClassifier.classify(request, attempt))
        }
    }

    Rule(rule)
}
