//! Tests the total timeout, which sets the deadline of a call.

use super::*;

#[tokio::test(start_paused = true)]
async fn call_slower_than_its_total_timeout_returns_a_deadline_error() {
    let server = ScriptedService::new([NoResponse]);
    let start = Instant::now();
    let error = total(millis(1500)).layer(server.clone()).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(start.elapsed(), millis(1500));
    assert!(error.is_timeout() && error.is_deadline() && !error.is_service());
    assert_eq!(error.to_string(), "total timeout of 1.5s exceeded");
    assert!(error.source().is_none());
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Deadline));
    assert_eq!(server.instances(), 1, "the clone that ran the attempt is dropped");
}

#[tokio::test(start_paused = true)]
async fn third_attempt_gets_only_the_time_left_before_the_deadline() {
    let service = ServiceBuilder::new()
        .layer(total(secs(5)))
        .layer(RetryLayer::new())
        .layer(per_attempt(secs(2)))
        .service(ScriptedService::new([NoResponse]));
    let start = Instant::now();
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(start.elapsed(), secs(5));
    assert!(error.is_deadline());
    assert_eq!(error.to_string(), "total timeout of 5s exceeded after 3 attempts");
    let report = error.report().unwrap();
    assert_eq!(report.stop_reason(), Some(StopReason::Deadline));
    let attempts = report.attempts();
    assert_eq!(attempts.len(), 3);
    assert!(attempts.iter().all(|attempt| attempt.outcome == Some(Outcome::Timeout)));
    assert_eq!(attempts[2].ended, Some(secs(5)));
    let third = attempts[2].ended.unwrap() - attempts[2].started;
    assert!(third < secs(1), "{third:?}");
}

#[tokio::test(start_paused = true)]
async fn deadline_covers_poll_ready_and_the_wait_for_the_limiter() {
    let never_ready = tower::limit::ConcurrencyLimit::new(ScriptedService::new([Status(200)]), 0);
    let service = ServiceBuilder::new().layer(total(secs(3))).layer(RetryLayer::new()).service(never_ready);
    let start = Instant::now();
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_deadline());
    assert_eq!(start.elapsed(), secs(3));

    let bucket = LocalLimiter::token_bucket(Quota::per_minute(1).unwrap());
    let service = ServiceBuilder::new()
        .layer(total(secs(3)))
        .layer(RateLimitLayer::new(bucket))
        .service(ScriptedService::new([Status(200)]));
    service.clone().oneshot(get(URI)).await.unwrap();
    let start = Instant::now();
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_rate_limited() && error.retry_after() > Some(secs(3)), "{error:?}");
    assert_eq!(start.elapsed(), Duration::ZERO, "a call that cannot meet its deadline fails immediately");

    // The end of a request in flight cannot be forecast.
    let limiter = LocalLimiter::without_quota().with_max_in_flight(1).unwrap();
    let _held = limiter.acquire().await.unwrap();
    let service = ServiceBuilder::new()
        .layer(total(secs(3)))
        .layer(RateLimitLayer::new(limiter))
        .service(ScriptedService::new([Status(200)]));
    let error = service.oneshot(get(URI)).await.unwrap_err();
    let report = error.report().unwrap();
    assert_eq!((start.elapsed(), report.queued()), (secs(3), secs(3)), "{report}");
}

/// The total timeout has its own timer. The per-attempt timeout also ends at the deadline, but its timer has no
/// effect if its future is not polled.
#[tokio::test(start_paused = true)]
async fn deadline_does_not_depend_on_the_timer_of_the_attempt_timeout() {
    // The per-attempt timeout layer is outside the total timeout layer, and does not know the deadline.
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(per_attempt(secs(10)))
        .layer(RetryLayer::new())
        .layer(total(secs(5)))
        .service(ScriptedService::new([Status(503), NoResponse]));
    let start = Instant::now();
    assert!(service.oneshot(get(URI)).await.unwrap_err().is_deadline());
    assert_eq!(start.elapsed(), secs(5));

    // A spawned task polls the attempt's future, so the per-attempt timer wakes only that task and not the task of
    // the call.
    let inner = per_attempt(secs(2)).layer(ScriptedService::new([NoResponse]));
    let service =
        ServiceBuilder::new().layer(total(secs(5))).service(service_fn(move |request: Request<Content>| {
            let mut response = Box::pin(inner.clone().oneshot(request));
            async move {
                assert!(tokio::time::timeout(millis(50), response.as_mut()).await.is_err());
                tokio::spawn(response);
                pending::<Result<Response<Full<Bytes>>, Infallible>>().await
            }
        }));
    let start = Instant::now();
    let error = tokio::time::timeout(secs(60), service.oneshot(get(URI))).await.unwrap().unwrap_err();
    assert!(error.is_deadline());
    assert_eq!(start.elapsed(), secs(5));

    // The attempt completes, but the service around it stays pending.
    let inner = per_attempt(secs(2)).layer(ScriptedService::new([Delayed(100, 200)]));
    let service =
        ServiceBuilder::new().layer(total(secs(5))).service(service_fn(move |request: Request<Content>| {
            let response = inner.clone().oneshot(request);
            async move {
                let _ = response.await;
                pending::<Result<Response<Full<Bytes>>, Infallible>>().await
            }
        }));
    let start = Instant::now();
    assert!(service.oneshot(get(URI)).await.unwrap_err().is_deadline());
    assert_eq!(start.elapsed(), secs(5));
}

#[tokio::test(start_paused = true)]
async fn stack_meets_its_deadline_in_each_stage_of_a_call() {
    /// A signer that makes another call, and waits for the attempt timeout of that call.
    struct NestedCall;

    impl Sign for NestedCall {
        fn sign<'a>(&'a self, _: &'a mut Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
            let silent = per_attempt(secs(60)).layer(ScriptedService::new([NoResponse]));
            Box::pin(silent.oneshot(get(URI)).map_ok(drop).map_err(Into::into))
        }
    }

    /// A signer that sends another request of the same call in another task, and waits for something else.
    struct OtherTask;

    impl Sign for OtherTask {
        fn sign<'a>(&'a self, parts: &'a mut Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
            let mut request = get(URI);
            *request.extensions_mut() = parts.extensions.clone();
            tokio::spawn(per_attempt(secs(60)).layer(ScriptedService::new([NoResponse])).oneshot(request));
            Box::pin(pending())
        }
    }

    let unsigned = StackBuilder::new(URI).unwrap().without_credential().with_total_timeout(secs(5));
    let signed = unsigned.clone().with_signature(NestedCall);
    let signed_elsewhere = unsigned.clone().with_signature(OtherTask);
    for (stage, stack, permits, responses) in [
        ("first attempt", &unsigned, 1, vec![NoResponse]),
        ("second attempt", &unsigned, 1, vec![Status(503), NoResponse]),
        ("wait for the service", &unsigned, 0, vec![Status(200)]),
        ("signature", &signed, 1, vec![Status(200)]),
        ("signature that waits for no timer", &signed_elsewhere, 1, vec![Status(200)]),
    ] {
        let server = tower::limit::ConcurrencyLimit::new(ScriptedService::new(responses), permits);
        let service = stack.clone().with_attempt_timeout(secs(5)).layer().unwrap().layer(server);
        let start = Instant::now();
        let error = tokio::time::timeout(secs(60), service.oneshot(get(URI))).await.expect(stage);
        assert!(error.unwrap_err().is_deadline(), "{stage}");
        assert_eq!(start.elapsed(), secs(5), "{stage}");
    }
}

#[tokio::test(start_paused = true)]
async fn stack_sends_no_attempt_that_is_signed_after_the_deadline() {
    struct SlowSignature;

    impl Sign for SlowSignature {
        fn sign<'a>(&'a self, _: &'a mut Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
            Box::pin(async {
                tokio::time::advance(secs(6)).await;
                Ok(())
            })
        }
    }

    let stack = StackBuilder::new(URI).unwrap().with_signature(SlowSignature).with_total_timeout(secs(5));
    let server = ScriptedService::new([Status(200)]);
    let service = stack.with_attempt_timeout(secs(5)).layer().unwrap().layer(server.clone());
    assert!(service.oneshot(get(URI)).await.unwrap_err().is_deadline());
    assert!(server.seen().is_empty());
}

#[tokio::test(start_paused = true)]
async fn inner_service_receives_the_earlier_of_two_deadlines() {
    let start = Instant::now();
    for (outer, inner, expected) in [(2, 60, 2), (60, 2, 2)] {
        let server = ScriptedService::new([Status(200)]);
        let service = ServiceBuilder::new()
            .layer(total(secs(outer)))
            .layer(total(secs(inner)))
            .layer(per_attempt(secs(1)))
            .service(server.clone());
        service.oneshot(get(URI)).await.unwrap();
        let deadline = server.seen()[0].head.extensions.get::<CallContext>().unwrap().deadline().unwrap();
        assert_eq!(deadline - start, secs(expected));
    }
}

/// Passes each request on twice, the first time after `delay`. Returns the result of the second call.
fn twice_after(
    delay: Duration,
) -> impl Layer<
    TotalTimeout<ScriptedService>,
    Service: Service<Request<Content>, Response = Response<tower_outbound::Body>, Error = Error>,
> {
    layer_fn(move |inner: TotalTimeout<ScriptedService>| {
        service_fn(move |request: Request<Content>| {
            let inner = inner.clone();
            async move {
                tokio::time::sleep(delay).await;
                let _ = inner.clone().oneshot(request.clone()).await;
                tokio::time::sleep(millis(10)).await;
                inner.oneshot(request).await
            }
        })
    })
}

#[tokio::test(start_paused = true)]
async fn total_timeout_counts_from_the_start_of_the_call_and_rejects_later_requests_of_the_call() {
    for (delay, ends, sent) in [(secs(2), secs(3), 1), (secs(4), secs(4), 0)] {
        let server = ScriptedService::new([NoResponse]);
        let service = ServiceBuilder::new()
            .layer(RequestIdLayer::new())
            .layer(twice_after(delay))
            .layer(total(secs(3)))
            .service(server.clone());
        let start = Instant::now();
        let error = service.oneshot(get(URI)).await.unwrap_err();
        assert!(error.is_deadline());
        assert_eq!(start.elapsed(), ends + millis(10));
        assert_eq!(server.seen().len(), sent, "a request after the deadline is not sent");
    }
}
