//! Tests the retry budget, which all calls of a retry layer share: what a retry costs, and when a success returns it.

use tokio::time::timeout;

use super::{support::Scripted::*, *};

/// Makes 100 calls in a minute, one every 600 ms. Returns the number of requests that the server receives.
async fn requests_for_100_calls(layer: &RetryLayer, server: &ScriptedService) -> usize {
    let before = server.calls();
    for _ in 0..100 {
        tokio::spawn(layer.layer(server.clone()).oneshot(get(URI)));
        tokio::time::sleep(millis(600)).await;
    }
    server.calls() - before
}

#[tokio::test(start_paused = true)]
async fn spent_budget_allows_at_most_one_retry_per_ten_failing_calls() {
    for status in [429, 500, 503] {
        let (server, layer) = (ScriptedService::new([Status(status)]), RetryLayer::new());
        let first = requests_for_100_calls(&layer, &server).await;
        // A full budget of 500 credits pays for 35 retries, or for 100 retries after throttled responses.
        assert_eq!(first, if status == 429 { 200 } else { 135 }, "{status}");
        for minute in 2..=5 {
            let requests = requests_for_100_calls(&layer, &server).await;
            assert!((100..=110).contains(&requests), "{status}: {requests} requests in minute {minute}");
        }
        // Without a budget, nearly every call makes three attempts.
        let layer = RetryLayer::new().without_budget();
        requests_for_100_calls(&layer, &server).await;
        assert!(requests_for_100_calls(&layer, &server).await >= 290, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn clones_of_a_retry_layer_share_a_budget_and_separate_layers_do_not() {
    let (server, layer) =
        (ScriptedService::new([Status(503)]), RetryLayer::new().with_max_attempts(100).unwrap());
    let attempts = async |layer: &RetryLayer| {
        report(&layer.layer(server.clone()).oneshot(get(URI)).await.unwrap()).attempt_count()
    };
    // The shared budget pays for 35 retries, and the first call makes all 35 of them.
    assert_eq!((attempts(&layer.clone()).await, attempts(&layer.with_seed(3)).await), (36, 1));
    let shared = Budget::new();
    for layer in [(); 2].map(|()| RetryLayer::new().with_budget(shared.clone())) {
        assert_eq!(attempts(&layer).await, 3);
    }
    assert_eq!(shared.left(), 500 - 4 * 14);
    assert_eq!(attempts(&RetryLayer::new()).await, 3);
}

#[tokio::test(start_paused = true)]
async fn retry_costs_14_credits_or_5_credits_after_a_throttled_response() {
    let budget = Budget::new();
    let layer = RetryLayer::new().with_budget(budget.clone());
    for (script, left) in [
        (vec![Status(503), Status(101)], 500),
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

/// Returns a limiter that grants `burst` permits immediately, and the next one after the end of the test.
fn limit_with_burst(burst: u32) -> RateLimitLayer<LocalLimiter> {
    let quota = Quota::new(burst + 1, secs(3_600)).and_then(|quota| quota.with_burst(burst));
    RateLimitLayer::new(LocalLimiter::token_bucket(quota.unwrap()))
}

#[tokio::test(start_paused = true)]
async fn retry_that_the_limiter_refuses_ends_the_call_and_spends_no_budget() {
    let budget = Budget::new();
    let inner = ScriptedService::new([Status(503)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().with_budget(budget.clone()))
        .layer(limit_with_burst(1).with_max_wait(millis(1)))
        .service(inner.clone());
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.retry_after() > Some(secs(50)), "{error:?}");
    let report = error.report().unwrap();
    assert_eq!((inner.calls(), report.stop_reason()), (1, Some(StopReason::NotRetryable)));
    assert_eq!((report.attempts()[1].outcome, budget.left()), (Some(Outcome::Refused), 500));
}

/// The resend after the 401 costs nothing, so only the retry after the 503 has a cost.
#[tokio::test(start_paused = true)]
async fn retry_that_the_limiter_refuses_after_a_resend_spends_no_budget() {
    let budget = Budget::new();
    let inner = service_fn(|request: Request<ReplayBody<Content>>| {
        let first = request.extensions().get::<CallContext>().unwrap().attempt() == 1;
        let mut response = Response::new(Content::default());
        *response.status_mut() =
            if first { StatusCode::UNAUTHORIZED } else { StatusCode::SERVICE_UNAVAILABLE };
        first.then(|| response.extensions_mut().insert(KeyReplaced));
        std::future::ready(Ok::<_, std::convert::Infallible>(response))
    });
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().with_budget(budget.clone()))
        .layer(limit_with_burst(2).with_max_wait(millis(1)))
        .service(inner);
    let error = service.oneshot(get(URI)).await.unwrap_err();
    let outcomes: Vec<_> = error.report().unwrap().attempts().iter().map(|it| it.outcome.unwrap()).collect();
    assert_eq!(outcomes.last(), Some(&Outcome::Refused));
    assert_eq!((outcomes.len(), budget.left()), (3, 500));
}

#[tokio::test(start_paused = true)]
async fn dropped_retry_does_not_return_its_cost_to_the_budget() {
    // The limiter queues the retry, or grants its permit.
    for (burst, calls) in [(1, 1), (9, 2)] {
        let (inner, budget) = (ScriptedService::new([Status(503), NoResponse]), Budget::new());
        let service = ServiceBuilder::new()
            .layer(RetryLayer::new().with_budget(budget.clone()))
            .layer(limit_with_burst(burst))
            .service(inner.clone());
        assert!(timeout(secs(20), service.oneshot(get(URI))).await.is_err());
        assert_eq!((budget.left(), inner.calls()), (486, calls));
    }
}
