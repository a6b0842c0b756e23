//! Tests the behaviour that the total timeout and the per-attempt timeout have in common.

use super::*;

/// Runs `$test` with the layer of each timeout.
macro_rules! for_each_layer {
    ($limit:expr, |$layer:ident| $test:block) => {{
        let $layer = total($limit);
        $test
        let $layer = per_attempt($limit);
        $test
    }};
}

#[test]
fn error_for_a_zero_timeout_names_the_setting() {
    for (error, field) in [
        (TotalTimeoutLayer::new(Duration::ZERO).unwrap_err(), "total timeout"),
        (AttemptTimeoutLayer::new(Duration::ZERO).unwrap_err(), "attempt timeout"),
        (BodyIdleTimeoutLayer::new(Duration::ZERO).unwrap_err(), "body idle timeout"),
    ] {
        assert_eq!((error.field(), error.value()), (field, "0ns"));
        assert_eq!(error.to_string(), format!("invalid {field} `0ns`: expected more than zero"));
    }
}

#[tokio::test(start_paused = true)]
async fn total_timeout_does_not_cover_the_response_body() {
    let slow = tower_outbound::test_util::ScriptedResponse::status(200).with_body("slow");
    let response = total(secs(1)).layer(ScriptedService::new([slow])).oneshot(get(URI)).await.unwrap();
    tokio::time::advance(secs(60)).await;
    assert_eq!(response.into_body().bytes_up_to(9).await.unwrap(), "slow");
}

#[tokio::test(start_paused = true)]
async fn response_takes_precedence_over_a_timeout_in_the_same_timer_tick() {
    for_each_layer!(millis(100), |layer| {
        let response = layer.layer(ScriptedService::new([Delayed(100, 200)])).oneshot(get(URI)).await;
        assert_eq!(response.unwrap().status(), 200, "{layer:?}");
        assert!(layer.layer(ScriptedService::new([Delayed(101, 200)])).oneshot(get(URI)).await.is_err());
    });
}

#[tokio::test(start_paused = true)]
async fn ready_response_takes_precedence_over_an_expired_timeout() {
    for_each_layer!(millis(100), |layer| {
        let server = ScriptedService::new([Delayed(50, 200)]);
        let mut call = task::spawn(layer.layer(server).oneshot(get(URI)));
        assert_pending!(call.poll());
        tokio::time::advance(secs(60)).await;
        assert!(call.is_woken());
        assert_eq!(assert_ready_ok!(call.poll()).status(), 200);
    });
}

#[test]
fn call_with_an_immediate_response_needs_no_tokio_runtime() {
    for_each_layer!(secs(1), |layer| {
        let service = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
        let mut call = task::spawn(layer.layer(service).oneshot(Request::new(())));
        assert_ready_ok!(call.poll());
    });
    // A stack with a retry layer and a rate limit layer needs no Tokio runtime.
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(total(secs(1)))
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(LocalLimiter::token_bucket(Quota::per_minute(100).unwrap())))
        .layer(per_attempt(secs(1)))
        .service(ScriptedService::new([Status(200)]));
    assert_ready_ok!(task::spawn(service.oneshot(get(URI))).poll());
}

#[tokio::test(start_paused = true)]
async fn timeout_layer_accepts_the_longest_duration_as_its_timeout() {
    for_each_layer!(Duration::MAX, |layer| {
        let response = layer.layer(ScriptedService::new([Delayed(60_000, 200)])).oneshot(get(URI)).await;
        assert_eq!(response.unwrap().status(), 200);
    });
}
