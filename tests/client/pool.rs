//! Tests a client with a pool of members: which member gets which request, with which key, and after which delay.

mod choice;
mod keys;
mod permanent;

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, AtomicU32},
};

use tower_outbound::auth::KeySource;

use super::*;

const EU: &str = "https://eu.example.com/v1";
const US: &str = "https://us.example.com/api/v1";
const SECOND: Duration = Duration::from_secs(1);

fn key(key: &str) -> ApiKey {
    ApiKey::new(key).unwrap()
}

fn per_second(limit: u32) -> LocalLimiter {
    LocalLimiter::paced_window(Quota::per_second(limit).unwrap())
}

/// Returns a pool of two members with these limiters.
fn pool(eu: LocalLimiter, us: LocalLimiter) -> Pool {
    Pool::new([(EU, key("eu-key"), eu), (US, key("us-key"), us)]).unwrap()
}

fn builder(pool: Pool) -> StackBuilder {
    StackBuilder::new(EU).unwrap().with_pool(pool).with_retry(quick_retry())
}

/// Returns the place of a request: `eu` or `us`.
fn place(seen: &Seen) -> &str {
    seen.head.uri.host().unwrap().split('.').next().unwrap()
}

/// Returns a service that responds with the first of two scripts to requests to `eu`, and with the second to others.
fn service(
    eu: impl Fn() -> ScriptedResponse + Send + Sync + 'static,
    us: impl Fn() -> ScriptedResponse + Send + Sync + 'static,
) -> ScriptedService {
    ScriptedService::from_fn(move |seen| if place(seen) == "eu" { eu() } else { us() })
}

fn ok() -> ScriptedResponse {
    ScriptedResponse::status(200)
}

fn throttled() -> ScriptedResponse {
    ScriptedResponse::status(429).with_header("retry-after", "30")
}

fn places(service: &ScriptedService) -> Vec<String> {
    service.seen().iter().map(|seen| place(seen).to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn each_member_gets_its_own_url_and_key() {
    let service = service(ok, ok);
    let client = builder(pool(LocalLimiter::without_quota(), LocalLimiter::without_quota()))
        .client_with_service(service.clone())
        .unwrap();
    for path in ["/chat?stream=1", "https://eu.example.com/v1/chat?stream=1", "", "/"] {
        for _ in 0..2 {
            let expected = client.get(path).header("host", "eu.example.com").await.unwrap();
            assert_eq!(expected.status(), 200);
        }
    }
    let sent = service.seen();
    let sent = sent.iter().map(|seen| (seen.head.uri.to_string(), seen.header("authorization").unwrap()));
    let urls = ["/chat?stream=1", "/chat?stream=1", "", "/"];
    let expected = urls.into_iter().flat_map(|rest| {
        [(format!("{EU}{rest}"), "Bearer eu-key"), (format!("{US}{rest}"), "Bearer us-key")]
    });
    assert!(sent.eq(expected), "{:?}", service.seen());
    assert!(service.seen().iter().all(|seen| seen.header("host").is_none() == (place(seen) == "us")));
    let by_query = builder(pool(per_second(10), per_second(10)));
    let by_query = by_query.with_key_placement(KeyPlacement::query("key").unwrap());
    by_query.client_with_service(service.clone()).unwrap().get("/chat").await.unwrap();
    assert_eq!(service.seen().pop().unwrap().head.uri, *format!("{EU}/chat?key=eu-key"));
    let before = service.calls();
    let own_key = client.get("/chat").header("authorization", "Bearer eu-key");
    for request in [client.get("https://us.example.com/api/v1/chat"), own_key] {
        let error = request.await.unwrap_err();
        assert!(error.is_invalid_request(), "{error}");
    }
    assert_eq!(service.calls(), before);
}

#[tokio::test(start_paused = true)]
async fn throttled_request_goes_to_the_other_member_at_once() {
    let service = service(throttled, ok);
    let client = builder(pool(per_second(10), per_second(10))).client_with_service(service.clone()).unwrap();
    let start = Instant::now();
    for call in 0..3 {
        let response = client.post("/chat").body("hello").await.unwrap();
        assert_eq!(
            (response.status(), report(&response).attempts().len()),
            (StatusCode::OK, 2 - call.min(1))
        );
        if call == 0 {
            let requested = report(&response).attempts()[0].requested_delay;
            assert_eq!(requested, Some(Duration::from_secs(30)));
        }
    }
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    assert_eq!(places(&service), ["eu", "us", "us", "us"]);
    assert_eq!(service.seen()[1].body.as_deref(), Some(&b"hello"[..]));
}

#[tokio::test(start_paused = true)]
async fn throttled_members_get_no_request_before_the_requested_delay() {
    let (counts, starts) = (Arc::new(AtomicU32::new(0)), Instant::now());
    let counted = Arc::clone(&counts);
    let service = ScriptedService::from_fn(move |seen| {
        let is_early = starts.elapsed() < Duration::from_secs(if place(seen) == "eu" { 30 } else { 50 });
        match counted.fetch_add(1, Relaxed) {
            0 => throttled(),
            1 => ScriptedResponse::status(429).with_header("retry-after", "50"),
            _ if is_early => ScriptedResponse::status(500),
            _ => ok(),
        }
    });
    let client = builder(pool(per_second(10), per_second(10))).client_with_service(service.clone()).unwrap();
    let response = client.post("/chat").await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(places(&service), ["eu", "us", "eu"]);
    assert!(starts.elapsed() >= Duration::from_secs(30) && starts.elapsed() < Duration::from_secs(32));
    // The deadline of this call ends before both delays.
    let client = builder(pool(per_second(10), per_second(10)))
        .with_total_timeout(Duration::from_secs(5))
        .client_with_service(self::service(throttled, throttled))
        .unwrap();
    let response = client.post("/chat").await.unwrap();
    assert_eq!((response.status(), report(&response).attempts().len()), (StatusCode::TOO_MANY_REQUESTS, 2));
}

/// Only the retry layer knows the delay of the first member, so its limiter does not pause.
#[tokio::test(start_paused = true)]
async fn call_returns_to_a_throttled_member_only_after_the_delay_that_it_knows() {
    let signal = |status: StatusCode, _: &http::HeaderMap| {
        (status == 429).then(|| ServerSignal::throttled().with_not_processed().with_delay(30 * SECOND))
    };
    let service = service(
        || ScriptedResponse::status(429),
        || ScriptedResponse::status(503).with_header("retry-after", "40"),
    );
    let retry = quick_retry().with_dialect(Dialect::new().with_signal(signal));
    let [eu, us] = [(); 2].map(|()| per_second(1_000).with_throttle_pause(Duration::ZERO).unwrap());
    let builder = builder(pool(eu, us)).with_retry(retry);
    let client = builder.client_with_service(service.clone()).unwrap();
    assert_eq!(client.get("/chat").await.unwrap().status(), 429);
    let seen = service.seen();
    assert_eq!(places(&service), ["eu", "us", "eu"]);
    assert!(seen[1].at - seen[0].at < SECOND && seen[2].at - seen[0].at >= 30 * SECOND);
}

/// No forecast exists for a member that has its maximum in flight. A waiter does not leave it for a member with a
/// longer pause.
#[tokio::test(start_paused = true)]
async fn busy_member_is_preferred_to_a_long_pause() {
    let [eu, us] = [(); 2].map(|()| LocalLimiter::without_quota().with_max_in_flight(1).unwrap());
    let service = service(throttled, || ok().with_delay(SECOND));
    let client = builder(pool(eu, us)).client_with_service(service.clone()).unwrap();
    let start = Instant::now();
    let calls = (0..8).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.post("/chat").fetch_text().await.unwrap() })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    assert_eq!(places(&service).iter().filter(|place| *place == "eu").count(), 1);
    assert!(start.elapsed() < 10 * SECOND, "{:?}", start.elapsed());
}

/// A request moves to another member only if the server has provably not processed it, or if it may be repeated with
/// another account. Each attempt counts, not only the last one. A service recognizes an idempotency key within one
/// account only.
#[tokio::test(start_paused = true)]
async fn request_that_may_have_been_processed_stays_with_its_member() {
    let failed = || ScriptedResponse::status(503);
    let reset = || ScriptedResponse::io_error(std::io::ErrorKind::ConnectionReset);
    let (refused, never) = (ScriptedResponse::refused, ScriptedResponse::never);
    let plain = quick_retry;
    fn keyed() -> RetryLayer {
        quick_retry().with_honoured_idempotency_key(IdempotencyKey::bare())
    }
    let unrejected = || keyed().with_retry_rejected(RetryRejected::Idempotent);
    type Script = Vec<fn() -> ScriptedResponse>;
    type Case<'a> = (Method, bool, fn() -> RetryLayer, Script, &'a [&'a str]);
    let cases: [Case<'_>; 15] = [
        (Method::GET, false, plain, vec![failed], &["eu", "us"]),
        (Method::HEAD, false, plain, vec![failed], &["eu", "us"]),
        (Method::PUT, false, plain, vec![failed], &["eu", "eu"]),
        (Method::DELETE, false, plain, vec![failed], &["eu", "eu"]),
        (Method::POST, true, plain, vec![failed], &["eu", "us"]),
        (Method::PUT, false, plain, vec![refused], &["eu", "us"]),
        (Method::POST, false, plain, vec![refused], &["eu", "us"]),
        (Method::PUT, false, plain, vec![reset], &["eu", "eu"]),
        (Method::GET, false, plain, vec![never], &["eu", "us"]),
        (Method::PUT, false, plain, vec![never], &["eu", "eu"]),
        (Method::POST, false, plain, vec![throttled], &["eu", "us"]),
        (Method::POST, false, keyed, vec![never], &["eu", "eu"]),
        (Method::POST, false, keyed, vec![reset, refused], &["eu", "eu", "eu"]),
        (Method::POST, false, keyed, vec![reset, throttled], &["eu", "eu", "eu"]),
        // With `RetryRejected::Idempotent`, a 429 counts as maybe processed.
        (Method::POST, false, unrejected, vec![throttled, refused], &["eu", "eu", "eu"]),
    ];
    for (number, (method, is_idempotent, retry, script, expected)) in cases.into_iter().enumerate() {
        let service =
            ScriptedService::from_fn(move |seen| script.get(seen.number - 1).map_or_else(ok, |make| make()));
        let builder = builder(pool(per_second(10), per_second(10))).with_retry(retry());
        let client = builder.with_attempt_timeout(SECOND).client_with_service(service.clone()).unwrap();
        let request = client.request(method, "/chat");
        let request = if is_idempotent { request.idempotent() } else { request };
        assert_eq!(request.await.unwrap().status(), 200, "case {number}");
        assert_eq!(places(&service), expected, "case {number}");
        let keys: HashSet<_> =
            service.seen().iter().map(|seen| seen.header("idempotency-key").map(str::to_owned)).collect();
        assert_eq!(keys.len(), 1, "case {number}: all attempts send the same key");
    }
}

/// A pool in a layer also resolves paths, and its limiters read the responses to them.
#[tokio::test(start_paused = true)]
async fn single_member_waits_for_the_requested_delay() {
    let limiter = per_second(10);
    let pool = Pool::new([(EU, key("eu-key"), limiter.clone())]).unwrap();
    let service = ScriptedService::from_fn(|seen| if seen.number == 1 { throttled() } else { ok() });
    let stack = tower::Layer::layer(&builder(pool.clone()).layer().unwrap(), service.clone());
    let start = Instant::now();
    let request = http::Request::get("/chat").body(tower_outbound::Body::empty()).unwrap();
    let is_paused = async {
        tokio::time::sleep(SECOND).await;
        limiter.snapshot().paused_until.is_some()
    };
    let (response, is_paused) = tokio::join!(tower::ServiceExt::oneshot(stack, request), is_paused);
    assert_eq!((response.unwrap().status(), is_paused), (StatusCode::OK, true));
    assert!(start.elapsed() >= 30 * SECOND, "{:?}", start.elapsed());
    assert_eq!(service.seen()[1].head.uri, "https://eu.example.com/v1/chat");
    // Without another member, the response is returned if the delay exceeds the deadline.
    let late = || ScriptedResponse::status(429).with_header("retry-after", "7200");
    let client = builder(pool).client_with_service(ScriptedService::from_fn(move |_| late())).unwrap();
    assert_eq!(client.get("/chat").await.unwrap().status(), 429);
}

/// The clock runs, so each refusal comes a little later than the one before.
#[tokio::test]
async fn refusals_of_all_members_end_the_wait() {
    let [eu, us] = [(); 2].map(|()| per_second(1));
    for limiter in [&eu, &us] {
        limiter.pause_until(Instant::now() + 60 * SECOND);
    }
    let builder = builder(pool(eu, us)).with_limit(|limit| limit.with_max_wait(SECOND));
    let client = builder.client_with_service(service(ok, ok)).unwrap();
    let error = within(client.get("/chat")).await.unwrap_err();
    assert!(error.is_rate_limited(), "{error}");
}

/// The other member cannot grant the permits within the longest wait, and the delay does not count as a wait.
#[tokio::test(start_paused = true)]
async fn requested_delay_may_exceed_the_longest_wait() {
    let us = per_second(10);
    us.pause_until(Instant::now() + 20 * SECOND);
    let late = || ScriptedResponse::status(429).with_header("retry-after", "10");
    let service = ScriptedService::from_fn(move |seen| if seen.number == 1 { late() } else { ok() });
    let builder = builder(pool(per_second(10), us)).with_limit(|limit| limit.with_max_wait(5 * SECOND));
    let client = builder.client_with_service(service.clone()).unwrap();
    assert_eq!(client.post("/chat").await.unwrap().status(), 200);
    assert_eq!(places(&service), ["eu", "eu"]);
}

#[tokio::test(start_paused = true)]
async fn waiters_of_a_member_that_pauses_move_to_the_other() {
    let [eu, us] =
        [(); 2].map(|()| LocalLimiter::sliding_window(Quota::new(1, SECOND).unwrap().without_margin()));
    let service = service(ok, ok);
    let client = builder(pool(eu.clone(), us.clone())).client_with_service(service.clone()).unwrap();
    let start = Instant::now();
    let calls = (0..8).map(|_| tokio::spawn(client.get("/chat").send())).collect::<Vec<_>>();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((eu.snapshot().queued, us.snapshot().queued), (3, 3));
    eu.pause_until(start + Duration::from_secs(300));
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let places = places(&service);
    assert_eq!(places.iter().filter(|place| *place == "us").count(), 7, "{places:?}");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(us.snapshot().granted, 7);
}

#[tokio::test(start_paused = true)]
async fn request_is_refused_only_if_all_members_refuse_it() {
    let [eu, us] = [(); 2].map(|()| per_second(1));
    let builder = builder(pool(eu.clone(), us.clone())).with_limit(|limit| limit.with_max_wait(5 * SECOND));
    let client = builder.client_with_service(service(ok, ok)).unwrap();
    eu.pause_until(Instant::now() + Duration::from_secs(60));
    us.pause_until(Instant::now() + Duration::from_secs(40));
    let error = client.get("/chat").await.unwrap_err();
    assert!(error.is_rate_limited(), "{error}");
    assert_eq!(error.retry_after(), Some(Duration::from_secs(40)));
    us.resume();
    us.pause_until(Instant::now() + 2 * SECOND);
    assert_eq!(client.get("/chat").await.unwrap().status(), 200);
}

/// The first member refuses the request after 5 ms, and the second one after 1.5 s.
#[tokio::test(start_paused = true)]
async fn member_that_refused_a_request_may_grant_it_later() {
    for is_resumed in [true, false] {
        let [eu, us] = [(); 2].map(|()| per_second(1));
        let pool = pool(eu.clone(), us.clone());
        let builder = builder(pool).with_limit(|limit| limit.with_max_wait(5 * SECOND));
        let (service, start) = (service(ok, ok), Instant::now());
        let client = builder.client_with_service(service.clone()).unwrap();
        eu.pause_until(start + SECOND);
        us.pause_until(start + 2 * SECOND);
        let call = tokio::spawn(client.get("/chat").send());
        tokio::time::sleep(Duration::from_millis(5)).await;
        eu.pause_until(start + 20 * SECOND);
        tokio::time::sleep(SECOND).await;
        if is_resumed {
            eu.resume();
        } else {
            eu.pause_until(start + 90 * SECOND);
        }
        us.pause_until(start + 60 * SECOND);
        let result = call.await.unwrap();
        if is_resumed {
            assert_eq!((result.unwrap().status(), places(&service)), (StatusCode::OK, vec!["eu".to_owned()]));
        } else {
            // The present refusals count, not the first one of `eu`, which had a shorter wait.
            assert!(result.unwrap_err().retry_after() > Some(50 * SECOND));
        }
    }
}

/// The permit expires while the connection opens. The request already belongs to the first member, which has no other
/// permit for a second.
#[tokio::test(start_paused = true)]
async fn expired_permit_is_replaced_by_one_of_the_same_member() {
    let connector = service_fn(|_: http::Uri| async {
        tokio::time::sleep(Duration::from_millis(40)).await;
        let (client, server) = tokio::io::duplex(1 << 10);
        let respond = hyper::service::service_fn(|_| ready(Ok::<_, Infallible>(reply(200, "ok"))));
        let server = hyper_util::rt::TokioIo::new(server);
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(server, respond));
        Ok::<_, BoxError>(client)
    });
    let [eu, us] = [(); 2].map(|()| per_second(1));
    let members = [
        ("http://eu.example.com", key("eu-key"), eu.clone()),
        ("http://us.example.com", key("us-key"), us.clone()),
    ];
    let builder = StackBuilder::new("http://eu.example.com").unwrap().with_pool(Pool::new(members).unwrap());
    let transport = TransportConfig::new().build_with_connector(connector).unwrap();
    let client = builder.with_plaintext().client_with_service(transport).unwrap();
    let start = Instant::now();
    assert_eq!(client.get("/").fetch_text().await.unwrap(), "ok");
    assert!(start.elapsed() >= SECOND, "{:?}", start.elapsed());
    assert_eq!((eu.snapshot().granted, us.snapshot().granted), (2, 0));
}

/// The key of one member is replaced after a 401. The request is resent to the same member, with the new key.
#[tokio::test(start_paused = true)]
async fn rejected_key_of_a_member_is_replaced() {
    let fetched = Arc::new(AtomicU32::new(0));
    let provider = move || {
        let number = fetched.fetch_add(1, Relaxed);
        async move { Ok::<_, BoxError>(FreshKey::new(key(&format!("eu-key-{number}")))) }
    };
    let keys = [KeySource::from(RefreshingKey::new(provider)), key("us-key").into()];
    let members = [EU, US].into_iter().zip(keys).map(|(url, key)| (url, key, per_second(10)));
    let service = ScriptedService::from_fn(|seen| {
        let is_old = seen.header("authorization") == Some("Bearer eu-key-0");
        ScriptedResponse::status(if is_old { 401 } else { 200 })
    });
    let client = builder(Pool::new(members).unwrap()).client_with_service(service.clone()).unwrap();
    for _ in 0..2 {
        assert_eq!(client.post("/chat").await.unwrap().status(), 200);
    }
    let sent = service.seen();
    let keys = sent.iter().map(|seen| seen.header("authorization").unwrap()).collect::<Vec<_>>();
    assert_eq!(keys, ["Bearer eu-key-0", "Bearer eu-key-1", "Bearer us-key"]);
}

#[tokio::test(start_paused = true)]
async fn member_whose_key_could_not_be_fetched_gets_no_further_request() {
    let fails = Arc::new(AtomicBool::new(true));
    let fetches_fail = Arc::clone(&fails);
    let failing = KeySource::from(RefreshingKey::new(move || {
        let fails = fetches_fail.load(Relaxed);
        async move { if fails { Err(BoxError::from("no key")) } else { Ok(FreshKey::new(key("eu-key"))) } }
    }));
    let members = [(EU, failing, per_second(10)), (US, key("us-key").into(), per_second(10))];
    let service = service(ok, ok);
    let client = builder(Pool::new(members).unwrap()).client_with_service(service.clone()).unwrap();
    assert!(client.post("/chat").await.unwrap_err().is_auth());
    for _ in 0..4 {
        assert_eq!(client.post("/chat").await.unwrap().status(), 200);
    }
    assert_eq!(places(&service), ["us"; 4]);
    fails.store(false, Relaxed);
    // The backoff of the key source ends. The next request starts another fetch.
    tokio::time::sleep(60 * SECOND).await;
    for _ in 0..2 {
        assert_eq!(client.post("/chat").await.unwrap().status(), 200);
    }
    assert_eq!(places(&service)[4..], ["us", "eu"]);
}

#[tokio::test(start_paused = true)]
async fn fetch_that_hangs_delays_the_requests_to_the_other_member_until_its_timeout() {
    let hanging = RefreshingKey::new(std::future::pending::<Result<FreshKey, BoxError>>);
    let keys = [KeySource::from(key("us-key")), hanging.into()];
    let members = [US, EU].into_iter().zip(keys).map(|(url, keys)| (url, keys, per_second(10)));
    let service = service(ok, ok);
    let client = builder(Pool::new(members).unwrap()).client_with_service(service.clone()).unwrap();
    for delay in [RefreshingKey::DEFAULT_TIMEOUT, Duration::ZERO] {
        let start = Instant::now();
        assert_eq!(client.post("/chat").await.unwrap().status(), 200);
        let waited = start.elapsed();
        assert!((delay..delay + SECOND).contains(&waited), "{waited:?}");
    }
    assert_eq!(places(&service), ["us"; 2]);
}

/// The second fetch for the failed member never ends. The requests to the other member do not wait for it.
#[tokio::test(start_paused = true)]
async fn request_does_not_wait_for_the_next_fetch_of_a_failed_member() {
    let fetches = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&fetches);
    let hanging = KeySource::from(RefreshingKey::new(move || {
        let is_first = counted.fetch_add(1, Relaxed) == 0;
        async move {
            match is_first {
                true => Err::<FreshKey, _>(BoxError::from("no key")),
                false => std::future::pending().await,
            }
        }
    }));
    let members = [(EU, hanging, per_second(10)), (US, key("us-key").into(), per_second(10))];
    let service = service(ok, ok);
    let client = builder(Pool::new(members).unwrap()).client_with_service(service.clone()).unwrap();
    assert!(client.post("/chat").await.unwrap_err().is_auth());
    tokio::time::sleep(60 * SECOND).await;
    let start = Instant::now();
    assert_eq!(client.post("/chat").await.unwrap().status(), 200);
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    assert_eq!((places(&service), fetches.load(Relaxed)), (vec!["us".to_owned()], 2));
}

/// The retry could not go to the other member, so the delay of the throttled response applies.
#[tokio::test(start_paused = true)]
async fn member_that_gets_no_request_is_no_alternative_for_a_retry() {
    let failing = || RefreshingKey::new(|| async { Err::<FreshKey, _>(BoxError::from("no key")) });
    let full = || per_second(10).with_max_in_flight(1).unwrap();
    for (keys, max_queue) in [(KeySource::from(failing()), 10), (key("us-key").into(), 0)] {
        let limiter = full();
        let in_flight = (max_queue == 0).then(|| limiter.try_acquire_owned().unwrap());
        let members = [(US, keys, limiter), (EU, key("eu-key").into(), per_second(10))];
        let service = service(|| throttled().with_header("retry-after", "300"), ok);
        let client =
            builder(Pool::new(members).unwrap()).with_limit(move |limit| limit.with_max_queue(max_queue));
        let client = client.client_with_service(service.clone()).unwrap();
        if in_flight.is_none() {
            assert!(client.post("/chat").await.unwrap_err().is_auth());
        }
        let start = Instant::now();
        assert_eq!(client.post("/chat").await.unwrap().status(), 429, "{max_queue}");
        assert_eq!((places(&service), start.elapsed() < SECOND), (vec!["eu".to_owned()], true));
    }
}

/// The ends of the requests in flight are unknown, so all members are expected to be as early as their queues are
/// short.
#[tokio::test(start_paused = true)]
async fn backlog_is_spread_over_members_that_limit_the_requests_in_flight() {
    // The limits of the members, the times of their responses in milliseconds, and the longest time of 400 requests.
    for (limits, times, longest) in
        [([4, 4], [100, 100], 5_500), ([4, 4], [200, 50], 5_500), ([2, 10], [100, 100], 3_800)]
    {
        let members = limits.map(|max| LocalLimiter::without_quota().with_max_in_flight(max).unwrap());
        let [eu, us] = times.map(|time| move || ok().with_delay(Duration::from_millis(time)));
        let client = builder(pool(members[0].clone(), members[1].clone()));
        let client = client.with_total_timeout(100 * SECOND).client_with_service(service(eu, us)).unwrap();
        let start = Instant::now();
        let calls = (0..400).map(|_| client.get("/chat").fetch_text());
        join_all(calls).await.into_iter().for_each(|text| drop(text.unwrap()));
        let granted = members.map(|member| member.snapshot().granted);
        let took = start.elapsed().as_millis();
        assert!(took <= longest, "{limits:?} {times:?}: {took} ms, {granted:?}");
    }
}

#[tokio::test]
async fn request_to_an_unreachable_member_is_sent_to_the_other() {
    let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead_url = format!("http://{}", dead.local_addr().unwrap());
    drop(dead);
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let members = [
        (dead_url.clone(), key("eu-key"), per_second(100)),
        (format!("{}/v2", server.url()), key("us-key"), per_second(100)),
    ];
    let builder = StackBuilder::new(dead_url).unwrap().with_pool(Pool::new(members).unwrap());
    let client = builder.with_retry(quick_retry()).client().unwrap();
    for _ in 0..3 {
        assert_eq!(within(client.post("/chat").body("hi")).await.unwrap().status(), 200);
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|seen| seen.path_and_query() == "/v2/chat"));
    assert!(seen.iter().all(|seen| seen.header("authorization") == Some("Bearer us-key")));
}

#[test]
fn invalid_pool_is_rejected() {
    let none: [(&str, ApiKey, LocalLimiter); 0] = [];
    let error = Pool::new(none).unwrap_err().to_string();
    assert_eq!(error, "invalid pool `no members`: expected at least one member");
    let error = Pool::new([("eu.example.com", key("k"), per_second(1))]).unwrap_err().to_string();
    assert!(error.starts_with("invalid base url"), "{error}");

    let valid = || builder(pool(per_second(1), per_second(1)));
    assert!(valid().layer().is_ok());
    assert!(!format!("{:?}", valid()).contains("-key"));
    let plain = Pool::new([("http://10.0.0.1", key("k"), per_second(1))]).unwrap();
    let endpoints = Keyed::new(|head| head.method.clone(), |_| per_second(1));
    for (builder, field) in [
        (valid().with_api_key(key("k")), "credential"),
        (valid().without_credential(), "credential"),
        (valid().with_limiter(per_second(1)), "limiter"),
        (valid().with_limiter(AnyLimiter::new(per_second(1))), "limiter"),
        (valid().with_quota(Quota::per_second(1).unwrap()), "quota"),
        (valid().with_endpoint_limits(endpoints), "endpoint limits"),
        (valid().with_allowed_origin(Origin::parse("https://other.example.com").unwrap()), "allowed origin"),
        (
            StackBuilder::new(EU).unwrap().with_api_key(key("k")).with_limiter(valid().limiter().clone()),
            "limiter",
        ),
        (builder(plain.clone()), "origin"),
    ] {
        let error = builder.layer().unwrap_err();
        assert_eq!(error.field(), field, "{error}");
    }
    assert!(builder(plain).with_plaintext().layer().is_ok());
}

/// Random calls, some of which are dropped, through members of different kinds that pause at random.
#[tokio::test(start_paused = true)]
async fn no_request_stays_queued_or_in_flight_after_random_calls() {
    let quotas = [20, 50, 10].map(|limit| Quota::per_second(limit).unwrap().without_margin());
    let limiters = [
        LocalLimiter::paced_window(quotas[0]),
        LocalLimiter::sliding_window(quotas[1]).with_max_in_flight(5).unwrap(),
        LocalLimiter::token_bucket(quotas[2]),
    ];
    let urls = ["https://0.example.com", "https://1.example.com", "https://2.example.com"];
    let members = urls.into_iter().zip(limiters.clone()).map(|(url, limiter)| (url, key("k"), limiter));
    let arrivals = [(); 3].map(|()| Arrivals::new());
    let noted = arrivals.clone();
    let service = ScriptedService::from_fn(move |seen| {
        noted[place(seen).parse::<usize>().unwrap()].note();
        let response = match seen.number % 100 {
            0 => ScriptedResponse::status(429).with_header("retry-after", "1"),
            10..20 => ScriptedResponse::refused(),
            20..30 => ScriptedResponse::status(503),
            _ => ok(),
        };
        response.with_delay(Duration::from_millis(seen.number as u64 * 7919 % 300))
    });
    let builder = StackBuilder::new(urls[0]).unwrap().with_pool(Pool::new(members).unwrap());
    let client = builder.with_retry(quick_retry()).client_with_service(service.clone()).unwrap();
    let (mut calls, mut random) = (JoinSet::new(), 1_u64);
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    for number in 0..10_000 {
        let (client, patience) = (client.clone(), Duration::from_millis(1 + next(3_000)));
        calls.spawn(async move {
            let _ = tokio::time::timeout(patience, client.get("/").fetch_text()).await;
        });
        tokio::time::sleep(Duration::from_millis(next(20))).await;
        if number % 500 == 0 {
            limiters[next(3) as usize].pause_until(Instant::now() + Duration::from_millis(next(4_000)));
        }
    }
    calls.join_all().await;
    for (index, limiter) in limiters.iter().enumerate() {
        let snapshot = limiter.snapshot();
        assert_eq!((snapshot.queued, snapshot.requests_in_flight.unwrap_or(0)), (0, 0), "member {index}");
        arrivals[index].assert_within(quotas[index]);
    }
    assert!(service.calls() > 4_000, "{}", service.calls());
}
