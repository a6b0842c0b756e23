//! Tests a pool with a member whose key the server rejects.

use super::*;

fn is_of_eu(seen: &Seen) -> bool {
    seen.header("authorization") == Some("Bearer eu-key")
}

/// Returns a service that rejects the key of the first member while `rejects` is `true`.
fn rejecting(rejects: &Arc<AtomicBool>) -> ScriptedService {
    let rejects = Arc::clone(rejects);
    ScriptedService::from_fn(move |seen| {
        if is_of_eu(seen) && rejects.load(Relaxed) { ScriptedResponse::status(401) } else { ok() }
    })
}

fn with_eu_key(keys: KeySource, service: &ScriptedService) -> Client {
    let members = [(EU, keys, per_second(10)), (US, key("us-key").into(), per_second(10))];
    builder(Pool::new(members).unwrap()).client_with_service(service.clone()).unwrap()
}

fn eu_key(provider: impl Fn(u32) -> Result<ApiKey, BoxError> + Send + Sync + 'static) -> KeySource {
    let fetches = AtomicU32::new(0);
    RefreshingKey::new(move || ready(provider(fetches.fetch_add(1, Relaxed)).map(FreshKey::new))).into()
}

/// Sends one request every 500 ms. Returns how many did not end with a 200.
async fn failures_of(calls: u32, client: &Client) -> u32 {
    let mut failures = 0;
    for _ in 0..calls {
        failures += u32::from(client.post("/chat").await.unwrap().status() != 200);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    failures
}

/// The call that finds the rejection is resent to the other member. The sources whose closure provides no other key
/// notice this only after the resend.
#[tokio::test(start_paused = true)]
async fn member_whose_key_is_rejected_gets_only_probes() {
    let path = std::env::temp_dir().join(format!("tower-outbound-pool-{}", std::process::id()));
    std::fs::write(&path, "eu-key").unwrap();
    let no_key = || BoxError::from("revoked");
    for (name, keys, most_failures) in [
        ("fixed", key("eu-key").into(), 0),
        ("unchanged file", KeySource::from_file(&path).unwrap(), 0),
        (
            "failing closure",
            eu_key(move |fetch| if fetch == 0 { Ok(key("eu-key")) } else { Err(no_key()) }),
            1,
        ),
        ("closure with the same key", eu_key(|_| Ok(key("eu-key"))), 1),
    ] {
        let service = rejecting(&Arc::new(AtomicBool::new(true)));
        let client = with_eu_key(keys, &service);
        let failures = failures_of(60, &client).await;
        let rejected = service.seen().iter().filter(|seen| is_of_eu(seen)).count();
        assert!(failures <= most_failures, "{name}: {failures} of 60 calls failed");
        assert!((4..=9).contains(&rejected), "{name}: {rejected} requests with the rejected key in 30 s");
    }
    std::fs::remove_file(&path).unwrap();
}

/// Both members have the URL of one server.
#[tokio::test]
async fn request_with_a_rejected_key_is_resent_to_the_other_member() {
    let server = Server::start(Wire::Http1, |_, seen| {
        let is_of_eu = seen.header("authorization") == Some("Bearer eu-key");
        ready(Some(reply(if is_of_eu { 401 } else { 200 }, "ok")))
    })
    .await;
    let members = ["eu-key", "us-key"].map(|name| (server.url(), key(name), per_second(100)));
    let builder = StackBuilder::new(server.url()).unwrap().with_pool(Pool::new(members).unwrap());
    let client = builder.with_retry(quick_retry()).client().unwrap();
    let response = within(client.post("/chat").body("hello")).await.unwrap();
    assert_eq!(response.status(), 200);
    let attempts = report(&response).attempts();
    assert_eq!(attempts.iter().map(|attempt| attempt.member).collect::<Vec<_>>(), [Some(0), Some(1)]);
    let seen = server.seen();
    let keys = seen.iter().map(|seen| seen.header("authorization").unwrap()).collect::<Vec<_>>();
    assert_eq!(keys, ["Bearer eu-key", "Bearer us-key"]);
    assert!(seen.iter().all(|seen| seen.body == "hello"));
}

/// The member gets no request for at most a second after one wrong 401. A 503 neither accepts nor rejects the key.
#[tokio::test(start_paused = true)]
async fn member_whose_key_is_accepted_again_gets_requests_again() {
    for (status, expected) in [(200, 2), (404, 2), (422, 2), (403, 1), (503, 1)] {
        let service = ScriptedService::from_fn(move |seen| {
            ScriptedResponse::status(if seen.number == 1 { 401 } else { status })
        });
        let client = with_eu_key(key("eu-key").into(), &service);
        for _ in 0..5 {
            assert_eq!(client.post("/chat").await.unwrap().status(), status);
        }
        assert_eq!(places(&service)[1..], ["us"; 5]);
        tokio::time::sleep(SECOND).await;
        for _ in 0..4 {
            assert_eq!(client.post("/chat").await.unwrap().status(), status);
        }
        let eu = places(&service)[6..].iter().filter(|place| *place == "eu").count();
        assert_eq!(eu, expected, "{status}: {:?}", places(&service));
    }
}

/// A resend to a member that refuses it would hide the 401. The longest wait of zero refuses no resend at once.
#[tokio::test(start_paused = true)]
async fn rejection_is_returned_if_no_other_member_grants_the_resend_in_time() {
    for (pause, max_wait, expected) in [(600, 700, 401), (3, 2, 401), (3, 4, 200), (0, 0, 200)] {
        let us = per_second(10);
        us.pause_until(Instant::now() + pause * SECOND);
        let builder = builder(pool(per_second(10), us)).with_total_timeout(5 * SECOND);
        let builder = builder.with_limit(move |limit| limit.with_max_wait(max_wait * SECOND));
        let client = builder.client_with_service(rejecting(&Arc::new(AtomicBool::new(true)))).unwrap();
        let start = Instant::now();
        assert_eq!(client.post("/chat").await.unwrap().status(), expected, "{pause} {max_wait}");
        assert_eq!(start.elapsed() < SECOND, expected == 401 || pause == 0, "{pause} {max_wait}");
    }
}

/// A 401 was not processed, so the throttled resend may move on to the third member.
#[tokio::test(start_paused = true)]
async fn rejection_does_not_count_as_processed() {
    let service = ScriptedService::from_fn(|seen| match place(seen) {
        "eu" => ScriptedResponse::status(401),
        "us" => throttled(),
        _ => ok(),
    });
    let members = [EU, US, "https://as.example.com"].map(|url| (url, key("k"), per_second(10)));
    let client = builder(Pool::new(members).unwrap()).client_with_service(service.clone()).unwrap();
    let start = Instant::now();
    assert_eq!(client.post("/chat").await.unwrap().status(), 200);
    assert_eq!(
        (places(&service), start.elapsed() < SECOND),
        (["eu", "us", "as"].map(str::to_owned).into(), true)
    );
    // The limiter refuses the resend with the new key.
    let limiter = per_second(10);
    let paused = limiter.clone();
    let service = ScriptedService::from_fn(move |_| {
        paused.pause_until(Instant::now() + 600 * SECOND);
        ScriptedResponse::status(401)
    });
    let fetches = AtomicU32::new(0);
    let keys = eu_key(move |_| Ok(key(&format!("eu-key-{}", fetches.fetch_add(1, Relaxed)))));
    let client = builder(Pool::new([(EU, keys, limiter)]).unwrap()).with_total_timeout(5 * SECOND);
    let error = client.client_with_service(service).unwrap().post("/chat").await.unwrap_err();
    assert!(error.is_rate_limited() && !error.may_have_been_processed(), "{error:?}");
    assert!(!error.report().unwrap().may_have_been_processed());
}

/// The key of the first member is rejected for some time from 3 s on, while requests wait at both members.
#[tokio::test(start_paused = true)]
async fn backlog_is_spread_again_after_a_temporary_rejection() {
    // Without a rejection, the calls take 15 and 25 s.
    for (calls, rejected, timeout, max_wait, longest) in
        [(300, 3..4, 18, 600, 18), (300, 3..4, 600, 18, 19), (500, 3..6, 600, 600, 32)]
    {
        let start = Instant::now();
        let service = ScriptedService::from_fn(move |seen| {
            let is_rejected = is_of_eu(seen) && rejected.contains(&start.elapsed().as_secs());
            if is_rejected { ScriptedResponse::status(401) } else { ok() }
        });
        let builder = builder(pool(per_second(10), per_second(10))).with_total_timeout(timeout * SECOND);
        let builder = builder.with_limit(move |limit| limit.with_max_wait(max_wait * SECOND));
        let client = builder.client_with_service(service).unwrap();
        let results = join_all((0..calls).map(|_| client.get("/chat").send())).await;
        let failures = results.iter().filter(|it| it.as_ref().map_or(true, |it| it.status() != 200)).count();
        assert_eq!(failures, 0, "{calls}");
        assert!(start.elapsed() < longest * SECOND, "{calls}: {:?}", start.elapsed());
    }
}

/// The probe takes half a second to be rejected. Requests meanwhile go to the other member.
#[tokio::test(start_paused = true)]
async fn only_one_probe_is_sent_at_a_time() {
    let service = ScriptedService::from_fn(|seen| {
        if is_of_eu(seen) { ScriptedResponse::status(401).with_delay(SECOND / 2) } else { ok() }
    });
    let client = with_eu_key(key("eu-key").into(), &service);
    client.post("/chat").await.unwrap();
    tokio::time::sleep(SECOND).await;
    let calls = join_all((0..8).map(|_| client.post("/chat").send())).await;
    assert!(calls.into_iter().all(|call| call.unwrap().status() == 200));
    assert_eq!(places(&service).iter().filter(|place| *place == "eu").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn new_key_of_the_source_ends_the_failure_of_its_member() {
    let path = std::env::temp_dir().join(format!("tower-outbound-pool-new-{}", std::process::id()));
    std::fs::write(&path, "eu-key").unwrap();
    let service = rejecting(&Arc::new(AtomicBool::new(true)));
    let client = with_eu_key(KeySource::from_file(&path).unwrap(), &service);
    assert_eq!(failures_of(20, &client).await, 0);
    std::fs::write(&path, "eu-key-2").unwrap();
    tokio::time::sleep(KeySource::FILE_INTERVAL).await;
    let before = service.calls();
    assert_eq!(failures_of(4, &client).await, 0);
    let sent = &service.seen()[before..];
    assert_eq!(sent.len(), 4);
    let renewed = sent.iter().filter(|seen| seen.header("authorization") == Some("Bearer eu-key-2"));
    assert_eq!(renewed.count(), 2);
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test(start_paused = true)]
async fn rejection_is_returned_if_the_keys_of_all_members_are_rejected() {
    let service = service(|| ScriptedResponse::status(401), || ScriptedResponse::status(401));
    let client = with_eu_key(key("eu-key").into(), &service);
    assert_eq!(failures_of(10, &client).await, 10);
    assert!(["eu", "us"].iter().all(|place| places(&service).iter().filter(|it| it == place).count() >= 5));
}

/// The first member may have processed the PUT, so no other member gets it.
#[tokio::test(start_paused = true)]
async fn rejection_of_a_request_that_may_have_been_processed_is_returned() {
    let service =
        ScriptedService::from_fn(|seen| ScriptedResponse::status(if seen.number == 1 { 503 } else { 401 }));
    let client = with_eu_key(key("eu-key").into(), &service);
    assert_eq!(client.put("/chat").await.unwrap().status(), 401);
    assert_eq!(places(&service), ["eu", "eu"]);
}

/// Seven requests wait at each member when the first member's key is rejected. All are sent before the first probe.
#[tokio::test(start_paused = true)]
async fn waiters_leave_a_member_whose_key_is_rejected() {
    let limiter = || LocalLimiter::paced_window(Quota::per_second(50).unwrap().with_burst(1).unwrap());
    let service = service(|| ScriptedResponse::status(401).with_delay(Duration::from_millis(5)), ok);
    let client = builder(pool(limiter(), limiter())).client_with_service(service.clone()).unwrap();
    let calls = (0..16).map(|_| tokio::spawn(client.get("/chat").send())).collect::<Vec<_>>();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    let eu = places(&service).iter().filter(|place| *place == "eu").count();
    assert_eq!(eu, 1, "{:?}", places(&service));
}

/// The key of the first member expires, and its second fetch fails. A request that waits at this member then joins the
/// queue of the other member, ahead of a later request.
#[tokio::test(start_paused = true)]
async fn waiters_leave_a_member_whose_key_source_has_failed() {
    let fetches = AtomicU32::new(0);
    let provider = move || {
        let is_first = fetches.fetch_add(1, Relaxed) == 0;
        let fresh = FreshKey::new(key("eu-key")).with_lifetime(SECOND);
        ready(if is_first { Ok(fresh) } else { Err(BoxError::from("no key")) })
    };
    let limiter =
        |seconds| LocalLimiter::sliding_window(Quota::new(1, seconds * SECOND).unwrap().without_margin());
    let eu = KeySource::from(RefreshingKey::new(provider));
    let members = [(EU, eu, limiter(20)), (US, key("us-key").into(), limiter(30))];
    let service = service(ok, ok);
    let builder = builder(Pool::new(members).unwrap()).with_total_timeout(600 * SECOND);
    let client = builder.client_with_service(service.clone()).unwrap();
    let send = |number: u32| tokio::spawn(client.get("/chat").header("x-number", number).send());
    // The first and the third request go to the first member, and the last one waits there for 40 s.
    let mut calls: Vec<_> = (0..5).map(send).collect();
    tokio::time::sleep(25 * SECOND).await;
    calls.push(send(5));
    let results = join_all(calls).await;
    let failed: Vec<_> = results.iter().map(|result| result.as_ref().unwrap().is_err()).collect();
    assert_eq!(failed, [false, false, true, false, false, false]);
    let order: Vec<_> =
        service.seen().iter().map(|seen| seen.header("x-number").unwrap().to_owned()).collect();
    assert_eq!(order, ["0", "1", "3", "4", "5"]);
}

/// The other member is paused longer than the deadline. The waiters are sent, and only the first 401 was wrong.
#[tokio::test(start_paused = true)]
async fn waiters_stay_queued_if_no_other_member_serves_them_in_time() {
    // If the pause begins later, that member first refuses its own waiters.
    for begin in [Duration::ZERO, SECOND / 20] {
        let us = per_second(10);
        let service = ScriptedService::from_fn(|seen| {
            ScriptedResponse::status(if seen.number == 10 { 401 } else { 200 })
        });
        let builder = builder(pool(per_second(10), us.clone())).with_total_timeout(5 * SECOND);
        let client = builder.client_with_service(service).unwrap();
        let pause = async {
            if !begin.is_zero() {
                tokio::time::sleep(begin).await;
            }
            us.pause_until(Instant::now() + 600 * SECOND);
        };
        let calls = join_all((0..30).map(|_| client.get("/chat").send()));
        let ((), results) = tokio::join!(pause, calls);
        let count =
            |status| results.iter().filter(|it| it.as_ref().is_ok_and(|it| it.status() == status)).count();
        assert_eq!((count(200), count(401)), (29, 1), "pause after {begin:?}");
    }
}

/// The requests that wait for a refresh are sent with the rejected key if it fails.
#[tokio::test(start_paused = true)]
async fn requests_that_waited_for_a_failed_refresh_are_resent_to_the_other_member() {
    let fetches = AtomicU32::new(0);
    let keys = RefreshingKey::new(move || {
        let is_first = fetches.fetch_add(1, Relaxed) == 0;
        async move {
            if is_first {
                return Ok(FreshKey::new(key("eu-key")));
            }
            tokio::time::sleep(3 * SECOND).await;
            Err(BoxError::from("revoked"))
        }
    });
    let limiter = LocalLimiter::without_quota;
    let members = [(EU, keys.into(), limiter()), (US, KeySource::from(key("us-key")), limiter())];
    let builder = builder(Pool::new(members).unwrap());
    let client = builder.client_with_service(rejecting(&Arc::new(AtomicBool::new(true)))).unwrap();
    let calls = (0..20_u32).map(|number| async move {
        // The first call finds the rejection. The others begin during the refresh, after its backoff.
        tokio::time::sleep(if number == 0 { Duration::ZERO } else { 2 * SECOND }).await;
        number
    });
    let results = join_all(calls.map(|started| async {
        started.await;
        client.post("/chat").await.unwrap().status().as_u16()
    }));
    let results = results.await;
    assert!(results[1..].iter().all(|status| *status == 200), "{results:?}");
}

/// The other member is paused longer than the deadline, so all requests wait for the new key of the first member.
#[tokio::test(start_paused = true)]
async fn requests_wait_for_the_refresh_after_a_rejection() {
    let (us, fetches) = (per_second(100), AtomicU32::new(0));
    us.pause_until(Instant::now() + 600 * SECOND);
    let keys = RefreshingKey::new(move || {
        let fresh =
            FreshKey::new(key(if fetches.fetch_add(1, Relaxed) == 0 { "eu-key" } else { "eu-key-2" }));
        async move {
            tokio::time::sleep(SECOND).await;
            Ok::<_, BoxError>(fresh)
        }
    });
    let members = [(EU, keys.into(), per_second(100)), (US, KeySource::from(key("us-key")), us)];
    let builder = builder(Pool::new(members).unwrap()).with_total_timeout(5 * SECOND);
    let client = builder.client_with_service(rejecting(&Arc::new(AtomicBool::new(true)))).unwrap();
    let calls = (0..10).map(|number| {
        let call = client.post("/chat").send();
        async move {
            tokio::time::sleep(number * SECOND / 4).await;
            call.await.unwrap().status()
        }
    });
    assert_eq!(join_all(calls).await, [200; 10]);
}
