//! Tests what an adaptive limiter does when a reported quota ends, when its configured quota changes, and after a
//! throttled response.

use tower_outbound::limit::{Amounts, Dialect, ServerSignal, Unit};

use super::*;

fn head(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let fields = fields.iter().copied();
    fields.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}

async fn send(limiter: &LocalLimiter, status: StatusCode, headers: &HeaderMap) {
    limiter.acquire().await.unwrap().complete(&ResponseInfo::new(status, headers));
}

#[tokio::test(start_paused = true)]
async fn queue_leaves_gradually_when_the_reported_quota_no_longer_sets_a_rate() {
    let quota = |limit, reset| {
        head(&[("ratelimit-limit", limit), ("ratelimit-remaining", "50"), ("ratelimit-reset", reset)])
    };
    let resource = |name, limit, reset| {
        let quota =
            [("x-ratelimit-limit", limit), ("x-ratelimit-remaining", "20"), ("x-ratelimit-reset", reset)];
        head(&[&quota[..], &[("x-ratelimit-resource", name)]].concat())
    };
    for (first, then) in [
        (quota("100", "60"), quota("500", "0")),
        (resource("search", "100", "60"), resource("core", "5000", "3000")),
    ] {
        let limiter = LocalLimiter::adaptive([]);
        send(&limiter, StatusCode::OK, &first).await;
        sleep(seconds(10)).await;
        let last = limiter.acquire().await.unwrap();
        let sent = Arc::new(AtomicUsize::new(0));
        let mut callers = JoinSet::new();
        for _ in 0..300 {
            let (limiter, sent) = (limiter.clone(), Arc::clone(&sent));
            callers.spawn(async move {
                let _permit = limiter.acquire().await.unwrap();
                sent.fetch_add(1, Relaxed);
                sleep(seconds(60)).await;
            });
        }
        yield_now().await;
        last.complete(&ResponseInfo::new(StatusCode::OK, &then));
        assert!(limiter.snapshot().learned.is_none());
        // The slow start doubles the number every 100 ms, until a response reports a quota.
        sleep(millis(250)).await;
        let sent = sent.load(Relaxed);
        assert!((2..10).contains(&sent), "{sent} of 300 requests left within 250 ms");
    }
}

#[tokio::test(start_paused = true)]
async fn queue_leaves_gradually_when_the_rate_of_tokens_or_of_requests_ends() {
    let llm = |requests, tokens: [&'static str; 2]| {
        head(&[
            ("x-ratelimit-limit-requests", "500"),
            ("x-ratelimit-remaining-requests", "499"),
            ("x-ratelimit-reset-requests", requests),
            ("x-ratelimit-limit-tokens", tokens[0]),
            ("x-ratelimit-remaining-tokens", "29000"),
            ("x-ratelimit-reset-tokens", tokens[1]),
        ])
    };
    // The first request sets a rate of tokens, or of requests. `None` for a call of `resume`.
    for (first, then) in [
        (llm("12ms", ["30000", "60s"]), Some(llm("12ms", ["200000", "6ms"]))),
        (llm("12ms", ["30000", "60s"]), None),
        (llm("60s", ["30000", "6ms"]), None),
    ] {
        let limiter = LocalLimiter::adaptive([]);
        let tokens = PermitRequest::new().with_amounts(Amounts::of(Unit::Tokens, 100));
        for _ in 0..5 {
            limiter.acquire_with(&tokens).await.unwrap().complete(&ResponseInfo::new(StatusCode::OK, &first));
            sleep(seconds(1)).await;
        }
        let snapshot = limiter.snapshot();
        assert_eq!(snapshot.learned.is_some() as usize + snapshot.learned_units.len(), 1);
        let last = limiter.acquire_with(&tokens).await.unwrap();
        let sent = Arc::new(AtomicUsize::new(0));
        let mut callers = JoinSet::new();
        for _ in 0..300 {
            let (limiter, sent) = (limiter.clone(), Arc::clone(&sent));
            callers.spawn(async move {
                let _permit = limiter.acquire_with(&tokens).await.unwrap();
                sent.fetch_add(1, Relaxed);
                sleep(seconds(60)).await;
            });
        }
        yield_now().await;
        let before = sent.load(Relaxed);
        assert!(before < 10, "{before} of 300 requests left at the rate");
        match &then {
            Some(then) => last.complete(&ResponseInfo::new(StatusCode::OK, then)),
            None => limiter.resume(),
        }
        let snapshot = limiter.snapshot();
        assert!(snapshot.learned.is_none() && snapshot.learned_units.is_empty(), "{snapshot:?}");
        sleep(millis(250)).await;
        let sent = sent.load(Relaxed) - before;
        assert!((2..10).contains(&sent), "{sent} of 300 requests left within 250 ms, {then:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_throttle_counts_against_no_remaining_permits() {
    let limiter = LocalLimiter::without_quota();
    let mut response = Response::builder().status(402).body(()).unwrap();
    response.extensions_mut().insert(ServerSignal::throttled().with_permanent());
    for _ in 0..60 {
        let mut permit = limiter.acquire().await.unwrap();
        permit.mark_sent(Instant::now());
        permit.complete(&ResponseInfo::with_dialect(&Dialect::new(), &response));
    }
    let headers = head(&[("x-ratelimit-remaining", "50"), ("x-ratelimit-reset", "3000")]);
    send(&limiter, StatusCode::OK, &headers).await;
    assert_eq!(limiter.snapshot().available, 50);
}

#[tokio::test(start_paused = true)]
async fn learned_rate_applies_again_when_a_lower_quota_is_raised() {
    let limiter = LocalLimiter::adaptive([]);
    let headers = head(&[("ratelimit", "\"a\";r=90;t=1"), ("ratelimit-policy", "\"a\";q=102;w=1")]);
    send(&limiter, StatusCode::OK, &headers).await;
    let rates = [10, 60, 600_000, 1].map(|limit| {
        limiter.set_quotas([Quota::per_minute(limit).unwrap().without_margin().with_burst(1).unwrap()]);
        limiter.snapshot().learned.unwrap().rate().round()
    });
    assert_eq!(rates, [0.0, 1.0, 100.0, 0.0]);
    limiter.set_quotas([]);
    assert_eq!(limiter.snapshot().learned.unwrap().rate().round(), 100.0);
}

#[tokio::test(start_paused = true)]
async fn throttle_pause_is_the_shortest_pause_of_an_adaptive_limiter_if_it_is_set() {
    for (set, expected) in
        [(None, millis(100)), (Some(0), millis(100)), (Some(1), seconds(1)), (Some(90), seconds(90))]
    {
        let mut limiter = LocalLimiter::adaptive([]);
        if let Some(pause) = set {
            limiter = limiter.with_throttle_pause(seconds(pause)).unwrap();
        }
        send(&limiter, StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new()).await;
        let start = Instant::now();
        send(&limiter, StatusCode::OK, &HeaderMap::new()).await;
        let waited = start.elapsed();
        assert!((expected..expected + millis(3)).contains(&waited), "{set:?}: {waited:?}");
    }
}
