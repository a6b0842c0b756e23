//! Tests of permit expiry: when a permit expires, and how `RateLimitLayer` replaces an expired permit.

use super::*;
use tower_outbound::limit::Joint;

/// Under a quota without a safety margin, a permit expires after 1/32 of the window or 50 ms, whichever is shorter.
#[tokio::test(start_paused = true)]
async fn permit_expires_after_a_quarter_of_the_safety_margin() {
    let quota = |window, margin| Quota::new(10, millis(window)).unwrap().with_margin(millis(margin)).unwrap();
    for (quotas, longest) in [
        (vec![quota(60_000, 1_000)], 250),
        (vec![quota(60_000, 100)], 25),
        (vec![quota(60_000, 4)], 1),
        (vec![quota(160, 40)], 10),
        (vec![Quota::new(10, millis(64)).unwrap()], 1),
        (vec![quota(60_000, 0)], 50),
        (vec![quota(160, 0)], 5),
        (vec![quota(60_000, 1_000), quota(160, 0)], 5),
    ] {
        for limiter in
            [LocalLimiter::token_bucket(quotas.clone()), LocalLimiter::sliding_window(quotas.clone())]
        {
            let (limiter, request) = (AnyLimiter::new(limiter), Request::new(()));
            let permit = limiter.acquire_for(RequestHead::of(&request), &PermitRequest::new()).await.unwrap();
            advance(millis(longest) - Duration::from_nanos(1)).await;
            for expired in [false, false, true] {
                assert_eq!(permit.is_expired(), expired, "{quotas:?}");
                advance(Duration::from_nanos(1)).await;
            }
        }
    }
    let unlimited = LocalLimiter::without_quota();
    let permit = unlimited.try_acquire().unwrap();
    advance(seconds(1_000_000)).await;
    assert!(!permit.is_expired(), "permits of an unlimited limiter do not expire");
}

#[tokio::test(start_paused = true)]
async fn max_wait_and_max_queue_do_not_limit_replacement_of_expired_permits() {
    for (delay, granted) in [(50, 1), (51, 2)] {
        let limiter = LocalLimiter::token_bucket(one_per_second());
        let layer = RateLimitLayer::new(limiter.clone()).with_max_wait(Duration::ZERO).with_max_queue(0);
        // The maximum wait and the maximum queue length apply only to the first permit of a call.
        layer.layer(ready_after(delay)).oneshot(Request::new(())).await.unwrap();
        assert_eq!(limiter.snapshot().granted, granted, "inner service ready after {delay} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn rate_limit_layer_replaces_permits_that_expire_before_readiness() {
    for (margin, make) in [
        (0, LocalLimiter::token_bucket as fn(Quota) -> LocalLimiter),
        (0, LocalLimiter::sliding_window),
        (500, LocalLimiter::token_bucket),
    ] {
        let quota = Quota::per_second(10).unwrap().with_margin(millis(margin)).unwrap();
        // The first eight responses take ten seconds.
        let delay = |number| if number < 8 { seconds(10) } else { Duration::ZERO };
        let api = ScriptedService::from_fn(move |seen| {
            ScriptedResponse::status(200).with_delay(delay(seen.number))
        });
        let slots = ConcurrencyLimitLayer::new(8).layer(api.clone());
        let limited = RateLimitLayer::new(make(quota)).layer(slots);
        let calls: JoinSet<_> =
            (0..100).map(|_| limited.clone().oneshot(Request::new(Body::empty()))).collect();
        calls.join_all().await.into_iter().for_each(|response| drop(response.unwrap()));
        assert_eq!(api.arrivals().times().len(), 100);
        api.arrivals().assert_within(quota);
    }
}

#[tokio::test(start_paused = true)]
async fn permit_expires_if_a_pause_starts_before_the_inner_service_is_ready() {
    let (limiter, start) = (LocalLimiter::without_quota(), Instant::now());
    let limited = RateLimitLayer::new(limiter.clone()).layer(ready_after(100));
    let mut call = task::spawn(limited.oneshot(Request::new(())));
    assert_pending!(call.poll());
    limiter.pause_until(start + seconds(30));
    call.await.unwrap();
    assert!(start.elapsed() >= seconds(30), "{:?}", start.elapsed());
    // The pause made the limiter grant another permit, and the first one no longer counts as in flight.
    assert_eq!((limiter.snapshot().granted, limiter.snapshot().awaiting_response), (2, 0));
}

/// Sends ten requests of low priority and one of high priority per second through two connections. The first two
/// responses pause the limiter. Returns when the last request of low priority ends.
async fn last_end_after_a_429(limiter: impl SelectLimiter + Clone + Send + Sync + 'static) -> Duration {
    let api = ScriptedService::from_fn(|seen| match seen.number {
        0 | 1 => ScriptedResponse::status(429).with_header("retry-after", "1").with_delay(millis(50)),
        _ => ScriptedResponse::status(200).with_delay(millis(50)),
    });
    let limited = RateLimitLayer::new(limiter).layer(ConcurrencyLimit::new(api, 2));
    let call = |starts_at: u64, priority: Priority| {
        let limited = limited.clone();
        async move {
            sleep(millis(starts_at)).await;
            let mut request = Request::new(Body::empty());
            request.extensions_mut().insert(priority);
            limited.oneshot(request).await.unwrap();
        }
    };
    let start = Instant::now();
    let jobs: JoinSet<_> = (0..10).map(|_| call(0, Priority::Low)).collect();
    let _users: JoinSet<_> = (0..100).map(|number| call(10 + 1_000 * number, Priority::High)).collect();
    jobs.join_all().await;
    start.elapsed()
}

/// The connections belong to requests whose permits expired during the pause. A probe without a connection would wait
/// for them, and count as lost.
#[tokio::test(start_paused = true)]
async fn requests_with_connections_are_the_first_probes_after_a_429() {
    let parts = |make: fn() -> LocalLimiter| Keyed::new(|_| (), move |()| make());
    let account = Joint::new(LocalLimiter::adaptive([]), parts(LocalLimiter::without_quota));
    let part = Joint::new(LocalLimiter::without_quota(), parts(|| LocalLimiter::adaptive([])));
    let limiters = [
        ("one limiter", AnyLimiter::new(LocalLimiter::adaptive([]))),
        ("account", AnyLimiter::new(account)),
        ("part", AnyLimiter::new(part)),
    ];
    for (name, limiter) in limiters {
        let last = last_end_after_a_429(limiter).await;
        assert!(last < seconds(5), "{name}: {last:?}");
    }
}
