//! Tests which member of a pool gets a request, and where the caller sees it.

use super::*;

/// Returns a limiter of `limit` points and 600 requests per minute.
fn points(limit: u32) -> LocalLimiter {
    let points = Quota::per_minute(limit).unwrap().with_unit(Unit::Points).unwrap();
    LocalLimiter::paced_window([Quota::per_minute(600).unwrap(), points])
}

/// The second member would grant an amount above its limit as soon as its whole limit is available.
#[tokio::test(start_paused = true)]
async fn request_goes_to_a_member_whose_limits_fit_its_amounts() {
    let service = service(ok, ok);
    let client = builder(pool(points(6_000), points(1_200))).client_with_service(service.clone()).unwrap();
    let send = |amount| client.post("/chat").extension(Amounts::of(Unit::Points, amount)).send();
    for _ in 0..10 {
        assert_eq!(send(1_300).await.unwrap().status(), 200);
    }
    assert_eq!(places(&service), ["eu"; 10]);
    // The amount fits both members, or none.
    for amount in [1_200, 7_000] {
        tokio::time::sleep(120 * SECOND).await;
        let before = service.calls();
        for _ in 0..2 {
            assert_eq!(send(amount).await.unwrap().status(), 200);
        }
        let mut places = places(&service).split_off(before);
        places.sort();
        assert_eq!(places, ["eu", "us"], "{amount}");
    }
}

/// The other member can serve the retry only if no member's limits fit the amount.
#[tokio::test(start_paused = true)]
async fn retry_goes_only_to_a_member_whose_limits_fit_its_amounts() {
    for (amount, expected) in [(1_300, 429), (7_000, 200)] {
        let service = service(throttled, ok);
        let builder = builder(pool(points(6_000), points(1_200))).with_total_timeout(5 * SECOND);
        let client = builder.client_with_service(service).unwrap();
        let start = Instant::now();
        let request = client.post("/chat").extension(Amounts::of(Unit::Points, amount));
        assert_eq!(request.await.unwrap().status(), expected, "{amount}");
        assert!(start.elapsed() < SECOND, "{amount}: {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn report_names_the_member_of_each_attempt() {
    let service = service(throttled, ok);
    let client = builder(pool(per_second(10), per_second(10))).client_with_service(service).unwrap();
    let response = client.post("/chat").await.unwrap();
    let attempts = report(&response).attempts();
    assert_eq!(attempts.iter().map(|attempt| attempt.member).collect::<Vec<_>>(), [Some(0), Some(1)]);
    // The limiters of both members refuse the second attempt.
    let service = self::service(throttled, throttled);
    let [eu, us] = [(); 2].map(|()| per_second(10));
    us.pause_until(Instant::now() + 600 * SECOND);
    let builder = builder(pool(eu, us)).with_total_timeout(5 * SECOND);
    let response = builder.client_with_service(service).unwrap().post("/chat").await.unwrap();
    assert_eq!(report(&response).attempts()[0].member, Some(0));
    let alone = ScriptedService::new([200]);
    let client = StackBuilder::new(EU).unwrap().without_credential().client_with_service(alone).unwrap();
    assert_eq!(report(&client.get("/").await.unwrap()).attempts()[0].member, None);
}

/// With the default margin, a member grants 98.36 % of its quota.
#[tokio::test(start_paused = true)]
async fn callers_use_98_percent_of_the_quota_of_each_member() {
    for (limits, latency) in [([500, 50], 500), ([60, 600], 2_000)] {
        let members = limits.map(|limit| LocalLimiter::paced_window(Quota::per_minute(limit).unwrap()));
        let [eu, us] = [(); 2].map(|()| move || ok().with_delay(Duration::from_millis(latency)));
        let builder = builder(pool(members[0].clone(), members[1].clone()));
        let client = builder.client_with_service(service(eu, us)).unwrap();
        let mut callers = JoinSet::new();
        for _ in 0..64 {
            let client = client.clone();
            callers.spawn(async move { while client.get("/chat").await.unwrap().status() == 200 {} });
        }
        tokio::time::sleep(180 * SECOND).await;
        for (member, limit) in members.iter().zip(limits) {
            let used = member.snapshot().granted as f64 / f64::from(3 * limit);
            assert!((0.98..=1.0).contains(&used), "{used} of {limit} per minute");
        }
    }
}
