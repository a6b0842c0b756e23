//! Tests how much of the retry budget a retry costs, and when a success returns the cost.

use std::{iter, time::Duration};

use http::{Request, Response};
use tokio::time::timeout;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    BoxError, Quota,
    body::ReplayBody,
    call::{Deadline, KeyReplaced, StopReason},
    limit::{LocalLimiter, RateLimitLayer},
    retry::{Budget, RetryLayer, RetryOverride, RetryRejected},
};

use super::{
    URI, report,
    support::{Content, Scripted::*, ScriptedService, get, millis, request, secs},
};

#[tokio::test(start_paused = true)]
async fn retry_costs_14_credits_or_5_credits_after_a_throttled_response() {
    let budget = Budget::new();
    let layer = RetryLayer::new().with_budget(budget.clone());
    for (script, left) in [
        (vec![Status(503), Status(404)], 486),
        (vec![Status(429), Status(404)], 481),
        (vec![Status(503)], 453),
        (vec![Status(429)], 443),
        // A success returns only the cost of the last retry to the budget.
        (vec![Status(503), Status(200)], 443),
        (vec![Status(429), Status(503), Status(200)], 438),
        (vec![Status(503), Status(429), Status(200)], 424),
        (vec![Refused, Status(200)], 424),
        (vec![Status(200)], 425),
        (vec![Status(302)], 426),
    ] {
        layer.layer(ScriptedService::new(script.clone())).oneshot(get(URI)).await.unwrap();
        assert_eq!(budget.left(), left, "{script:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn status_101_after_a_retry_returns_the_spent_credits_to_the_budget() {
    let budget = Budget::new();
    let layer = RetryLayer::new().with_budget(budget.clone());
    let response =
        layer.layer(ScriptedService::new([Status(503), Status(101)])).oneshot(get(URI)).await.unwrap();
    assert_eq!(report(&response).stop_reason(), Some(StopReason::Success));
    assert_eq!(budget.left(), 500);
}

#[tokio::test(start_paused = true)]
async fn call_without_a_retry_spends_no_budget() {
    let budget = Budget::new();
    let layer = RetryLayer::new().with_budget(budget.clone());
    let with_short_deadline = |mut request: Request<Content>| {
        request.extensions_mut().insert(Deadline::after(millis(50)));
        request
    };
    let without_retries = |mut request: Request<Content>| {
        request.extensions_mut().insert(RetryOverride::new().without_retries());
        request
    };
    let cases = [
        (layer.clone(), Status(503), with_short_deadline(get(URI)), StopReason::Deadline),
        (layer.clone(), Status(503), without_retries(get(URI)), StopReason::Exhausted),
        (layer.clone().with_max_attempts(1).unwrap(), Status(503), get(URI), StopReason::Exhausted),
        (
            layer.clone().with_custom_backoff(iter::empty::<Duration>),
            Status(503),
            get(URI),
            StopReason::Exhausted,
        ),
        (layer.clone(), Status(503), request("POST", URI), StopReason::NotIdempotent),
        (
            layer.clone().with_retry_rejected(RetryRejected::Idempotent),
            Status(429),
            request("POST", URI),
            StopReason::NotIdempotent,
        ),
        (layer.clone().with_replay_limit(4), Status(503), request("PUT", URI), StopReason::NotReplayable),
        (layer.clone(), KeepsBody(503), request("PUT", URI), StopReason::NotReplayable),
        (layer.clone(), RetryAfter(503, "121"), get(URI), StopReason::RequestedDelayTooLong),
        (layer.clone(), Status(404), get(URI), StopReason::NotRetryable),
    ];
    for (layer, response, request, expected) in cases {
        let inner = ScriptedService::new([response]);
        let returned = layer.layer(inner.clone()).oneshot(request).await.unwrap();
        assert_eq!((report(&returned).stop_reason(), inner.calls()), (Some(expected), 1), "{response:?}");
        assert_eq!(budget.left(), 500, "{response:?}: {expected:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_that_the_limiter_refuses_spends_no_budget() {
    let budget = Budget::new();
    let bucket =
        LocalLimiter::token_bucket(Quota::new(2, secs(60)).unwrap().with_burst(1).unwrap().without_margin());
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().with_budget(budget.clone()))
        .layer(RateLimitLayer::new(bucket).with_max_wait(millis(1)))
        .service(ScriptedService::new([Status(503)]));
    service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(budget.left(), 500);
}

/// Returns a limiter that grants `burst` permits immediately. The limiter grants no further permit before the test has
/// ended.
fn limit_with_burst(burst: u32) -> RateLimitLayer<LocalLimiter> {
    let quota = Quota::new(burst + 1, secs(3_600)).and_then(|quota| quota.with_burst(burst));
    RateLimitLayer::new(LocalLimiter::token_bucket(quota.unwrap()))
}

/// Drops a call during its second attempt. Returns the remaining credits of a budget that started with 500 credits.
async fn credit_left_after_drop<S, R>(inner: S) -> u32
where
    S: Service<Request<ReplayBody<Content>>, Response = Response<R>, Error: Into<BoxError>> + Clone,
    R: http_body::Body,
{
    let budget = Budget::new();
    let call = RetryLayer::new().with_budget(budget.clone()).layer(inner).oneshot(get(URI));
    assert!(timeout(secs(20), call).await.is_err(), "the call ended before the test dropped the call");
    budget.left()
}

#[tokio::test(start_paused = true)]
async fn dropped_retry_does_not_return_its_cost_to_the_budget() {
    let inner = ScriptedService::new([Status(503), NoResponse]);
    let queued = ServiceBuilder::new().layer(limit_with_burst(1)).service(inner.clone());
    assert_eq!((credit_left_after_drop(queued).await, inner.calls()), (486, 1));

    let inner = ScriptedService::new([Status(503), NoResponse]);
    let sent = ServiceBuilder::new().layer(limit_with_burst(9)).service(inner.clone());
    assert_eq!((credit_left_after_drop(sent).await, inner.calls()), (486, 2));
    assert_eq!(
        credit_left_after_drop(ScriptedService::new([Status(503), NoResponse])).await,
        486,
        "a dropped retry without a limiter should cost 14"
    );
}

/// The retry gets a 401, so the layer resends the request with another API key. The limiter queues or refuses this
/// resend.
#[tokio::test(start_paused = true)]
async fn credits_of_a_retry_stay_spent_if_the_resend_after_a_401_is_dropped_or_refused() {
    let mark_key_replaced = |mut response: Response<_>| {
        if response.status() == 401 {
            response.extensions_mut().insert(KeyReplaced);
        }
        response
    };
    let inner = ScriptedService::new([Status(503), Status(401)]);
    let queued = ServiceBuilder::new()
        .layer(limit_with_burst(2))
        .map_response(mark_key_replaced)
        .service(inner.clone());
    assert_eq!((credit_left_after_drop(queued).await, inner.calls()), (486, 2));

    let inner = ScriptedService::new([Status(503), Status(401)]);
    let budget = Budget::new();
    let refusing = ServiceBuilder::new()
        .layer(RetryLayer::new().with_budget(budget.clone()))
        .layer(limit_with_burst(2).with_max_wait(secs(1)))
        .map_response(mark_key_replaced)
        .service(inner.clone());
    assert!(refusing.oneshot(get(URI)).await.unwrap_err().is_rate_limited());
    assert_eq!((budget.left(), inner.calls()), (486, 2));
}
