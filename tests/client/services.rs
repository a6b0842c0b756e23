//! Tests the ways in which services report a throttle, from the bytes of a response to the next requests of a
//! client with a limiter and retries. The server is a script on paused time.

use tower::ServiceBuilder;
use tower_outbound::{Body, limit::QuotaHeaders};

use super::*;

const DATE: (&str, &str) = ("date", "Thu, 01 Jan 2026 01:00:00 GMT");

fn builder() -> StackBuilder {
    Client::builder("https://host").unwrap().with_api_key(ApiKey::new(KEY).unwrap())
}

fn paced() -> StackBuilder {
    builder().with_quota(Quota::per_minute(6_000).unwrap())
}

fn response(status: u16, headers: &[(&str, &str)]) -> ScriptedResponse {
    let response = ScriptedResponse::status(status).with_header(DATE.0, DATE.1);
    headers.iter().fold(response, |response, (name, value)| response.with_header(name, value))
}

/// Sends a request that is throttled with the first response, and four more from 100 ms on. Returns when the later
/// requests arrived.
async fn arrivals(builder: StackBuilder, method: Method, throttle: ScriptedResponse) -> Vec<Duration> {
    let script = [throttle].into_iter().chain(std::iter::repeat_n(ScriptedResponse::status(200), 5));
    let service = ScriptedService::new(script);
    let client = builder.client_with_service(service.clone()).unwrap();
    let start = Instant::now();
    let call = async |delay| {
        tokio::time::sleep(Duration::from_millis(delay)).await;
        assert_eq!(client.request(method.clone(), "/v1").body("x").await.unwrap().status(), 200);
    };
    tokio::join!(call(0), call(100), call(100), call(100), call(100));
    service.seen().iter().skip(1).map(|seen| seen.at - start).collect()
}

/// The delay is 3 s in each form.
#[tokio::test(start_paused = true)]
async fn no_request_is_sent_before_the_moment_that_a_service_states() {
    type Case<'a> = (&'a str, u16, &'a [(&'a str, &'a str)]);
    let cases: [Case<'_>; 17] = [
        ("seconds", 429, &[("retry-after", "3")]),
        ("Shopify", 429, &[("retry-after", "3.0"), ("x-shopify-shop-api-call-limit", "40/40")]),
        ("milliseconds", 429, &[("retry-after-ms", "3000")]),
        ("Unix time", 429, &[("retry-after", "1767229203")]),
        ("Zoom", 429, &[("retry-after", "2026-01-01T01:00:03Z")]),
        ("HTTP-date", 429, &[("retry-after", "Thu, 01 Jan 2026 01:00:03 GMT")]),
        ("draft 7", 429, &[("ratelimit", "limit=9, remaining=0, reset=3")]),
        ("draft 10", 429, &[("ratelimit", "\"default\";r=0;t=3")]),
        ("draft 6", 429, &[("ratelimit-remaining", "0"), ("ratelimit-reset", "3")]),
        ("GitHub secondary", 403, &[("retry-after", "3")]),
        ("GitHub", 403, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767229203")]),
        ("Binance", 418, &[("retry-after", "3")]),
        ("EVE Online", 420, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "3")]),
        ("overloaded", 529, &[("retry-after", "3")]),
        ("bandwidth", 509, &[("retry-after", "3")]),
        ("OpenAI", 429, &[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "3s")]),
        (
            "Linear",
            429,
            &[("x-ratelimit-requests-remaining", "0"), ("x-ratelimit-requests-reset", "1767229203000")],
        ),
    ];
    for (service, status, headers) in cases {
        let unlimited = builder().with_limiter(LocalLimiter::without_quota());
        for (limiter, builder) in [("paced", paced()), ("adaptive", builder()), ("unlimited", unlimited)] {
            let is_rejected = matches!(status, 429 | 529) || headers.iter().any(|(_, value)| *value == "0");
            let method = if is_rejected { Method::POST } else { Method::PUT };
            let arrivals = arrivals(builder, method, response(status, headers)).await;
            let least = Duration::from_secs(3);
            assert!(arrivals.iter().all(|at| *at >= least), "{service}, {limiter}: {arrivals:?}");
            assert!(arrivals.iter().any(|at| *at < least * 2), "{service}, {limiter}: {arrivals:?}");
            assert_eq!(arrivals.len(), 5, "{service}, {limiter}");
        }
    }
}

/// The empty quota of a later response, or of the response itself, resets after 20 s.
#[tokio::test(start_paused = true)]
async fn no_request_is_sent_before_the_reset_of_an_empty_quota_that_is_later_than_another_hint() {
    let quota = |status, left, reset| {
        let limit = ("x-ratelimit-limit", "10");
        response(status, &[limit, ("x-ratelimit-remaining", left), ("x-ratelimit-reset", reset)])
    };
    let jira = [
        ("retry-after", "1"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "2026-01-01T01:00:20Z"),
        ("ratelimit-reason", "jira-burst-based"),
    ];
    let late = |response: ScriptedResponse, delay| response.with_delay(Duration::from_millis(delay));
    let cases = [
        ("known reset", vec![quota(200, "5", "3"), quota(429, "0", "20")], [0, 100, 300], 20_100),
        (
            "second throttle",
            vec![late(response(429, &[]), 100), late(quota(429, "0", "20"), 140)],
            [0, 1, 300],
            20_141,
        ),
        ("Jira", vec![response(429, &jira)], [0, 100, 300], 20_000),
    ];
    for (case, script, at, least) in cases {
        let unlimited = builder().with_limiter(LocalLimiter::without_quota());
        for (limiter, builder) in [("paced", paced()), ("adaptive", builder()), ("unlimited", unlimited)] {
            // An adaptive limiter uses the earlier reset that it knows.
            let least = if (case, limiter) == ("known reset", "adaptive") { 3_000 } else { least };
            let ok = std::iter::repeat_n(ScriptedResponse::status(200), 9);
            let service = ScriptedService::new(script.clone().into_iter().chain(ok));
            let client = builder.client_with_service(service.clone()).unwrap();
            let start = Instant::now();
            let call = async |delay| {
                tokio::time::sleep(Duration::from_millis(delay)).await;
                client.get("/v1").await.unwrap();
            };
            let calls = at.map(call);
            futures_util::future::join_all(calls).await;
            let seen: Vec<_> = service.seen().iter().map(|seen| (seen.at - start).as_millis()).collect();
            let (early, later) = seen.split_at(script.len());
            assert!(early.iter().all(|at| *at <= 100), "{case}, {limiter}: {seen:?}");
            let range = least..25_000;
            assert!(
                later.len() >= 2 && later.iter().all(|at| range.contains(at)),
                "{case}, {limiter}: {seen:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn throttle_pause_of_the_builder_applies_without_a_quota() {
    let pause = Duration::from_secs(30);
    for builder in [paced(), builder()] {
        let arrivals = arrivals(builder.with_throttle_pause(pause), Method::GET, response(429, &[])).await;
        assert!(arrivals.iter().all(|at| *at >= pause), "{arrivals:?}");
        assert!(arrivals.iter().any(|at| *at < pause * 2), "{arrivals:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn permission_error_is_not_retried_and_does_not_pause_other_calls() {
    let left = [("x-ratelimit-remaining", "14"), ("x-ratelimit-reset", "1767229203")];
    for headers in [&[][..], &left] {
        let service = ScriptedService::new([response(403, headers), ScriptedResponse::status(200)]);
        let client = paced().client_with_service(service.clone()).unwrap();
        let start = Instant::now();
        let refused = client.get("/v1").await.unwrap();
        assert_eq!(refused.status(), 403);
        assert_eq!(report(&refused).stop_reason(), Some(StopReason::NotRetryable));
        assert_eq!(client.get("/v1").await.unwrap().status(), 200);
        assert!(start.elapsed() < Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn quotas_of_tokens_are_in_the_snapshot_until_their_reset() {
    let limiter = LocalLimiter::without_quota();
    let ok = [
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-reset-requests", "1s"),
        ("x-ratelimit-remaining-tokens", "149984"),
        ("x-ratelimit-limit-tokens", "150000"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    ];
    let empty = [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "6m0s")];
    let responses = [response(200, &ok), ScriptedResponse::status(200), response(429, &empty)];
    let service = ScriptedService::new(responses);
    let builder = builder().with_limiter(limiter.clone()).with_max_attempts(1);
    let client = builder.client_with_service(service).unwrap();
    client.get("/v1").await.unwrap();
    tokio::time::advance(Duration::from_secs(60)).await;
    client.get("/v1").await.unwrap();
    let others = limiter.snapshot().other_quotas;
    let [tokens] = others.as_slice() else { panic!("{others:?}") };
    assert_eq!((tokens.unit(), tokens.left(), tokens.limit()), (Unit::Tokens, 149_984, Some(150_000)));
    assert_eq!(tokens.name().as_str(), "x-ratelimit-remaining-tokens");
    assert_eq!(tokens.reset_after(), Duration::from_secs(300));
    // A later report replaces the earlier one.
    client.get("/v1").await.unwrap();
    let others = limiter.snapshot().other_quotas;
    assert_eq!(others.iter().map(|quota| quota.left()).collect::<Vec<_>>(), [0]);
    tokio::time::advance(Duration::from_secs(360)).await;
    assert_eq!(limiter.snapshot().other_quotas, []);
}

#[tokio::test(start_paused = true)]
async fn dialect_of_the_builder_applies_to_the_limiter_and_to_retries() {
    let header = HeaderName::from_static;
    let credits = QuotaHeaders::new(header("x-credits-left")).with_reset(header("x-credits-renew"));
    let dialect = Dialect::new()
        .with_quota_headers(credits)
        .and_then(|dialect| dialect.with_throttle_status(StatusCode::BAD_REQUEST))
        .and_then(|dialect| dialect.with_delay_header(header("x-wait")))
        .and_then(|dialect| dialect.with_delay_header_in_millis(header("x-wait-ms")))
        .unwrap();
    let cases: [(u16, &[(&str, &str)]); 5] = [
        (400, &[("x-credits-left", "0"), ("x-credits-renew", "3s")]),
        (400, &[("x-wait", "3")]),
        (429, &[("x-wait", "1767229203"), ("retry-after", "1")]),
        (429, &[("x-wait-ms", "3000")]),
        (429, &[("x-wait-ms", "3s"), ("x-wait", "soon")]),
    ];
    for (status, headers) in cases {
        for builder in [paced(), builder()] {
            // Replacing the retry layer keeps the dialect.
            let builder = builder.with_dialect(dialect.clone()).with_retry(super::quick_retry());
            let arrivals = arrivals(builder, Method::POST, response(status, headers)).await;
            let range = Duration::from_secs(3)..Duration::from_secs(6);
            assert!(arrivals.iter().all(|at| range.contains(at)), "{headers:?}: {arrivals:?}");
            assert_eq!(arrivals.len(), 5, "{headers:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn signal_decides_whether_a_response_throttles() {
    let signal = |status: StatusCode, headers: &http::HeaderMap| {
        let delay = headers.get("x-wait")?.to_str().ok()?.parse().ok()?;
        let throttled = ServerSignal::throttled().with_delay(Duration::from_secs(delay));
        Some(if status == 400 { throttled.with_not_processed() } else { throttled })
    };
    let throttle = response(400, &[("x-wait", "3")]);
    let rejected = arrivals(paced().with_server_signal(signal), Method::POST, throttle).await;
    assert!(rejected.iter().all(|at| *at >= Duration::from_secs(3)), "{rejected:?}");

    // A POST with a 200 was processed, whatever the signal reports. Only an idempotent request is retried.
    for (path, attempts) in [("/processed", 1), ("/safe", 2)] {
        let always = |_: StatusCode, _: &http::HeaderMap| {
            Some(ServerSignal::throttled().with_delay(Duration::from_secs(3)).with_not_processed())
        };
        let service = ScriptedService::new([200, 200, 200].map(ScriptedResponse::status));
        let client = paced().with_server_signal(always).with_max_attempts(2);
        let client = client.client_with_service(service.clone()).unwrap();
        let request = if attempts == 1 { client.post(path) } else { client.get(path) };
        assert_eq!(request.await.unwrap().status(), 200);
        assert_eq!(service.calls(), attempts);
    }
}

#[tokio::test(start_paused = true)]
async fn remaining_permits_of_a_signal_limit_later_calls() {
    let signal = |status: StatusCode, _: &http::HeaderMap| {
        let left = if status == 429 { 0 } else { 2 };
        let signal = if status == 429 { ServerSignal::throttled() } else { ServerSignal::accepted() };
        Some(signal.with_remaining(left, Duration::from_secs(3)))
    };
    for builder in [paced(), builder()] {
        let builder = builder.with_server_signal(signal);
        let arrivals = arrivals(builder, Method::GET, response(429, &[])).await;
        assert!(arrivals.iter().all(|at| *at >= Duration::from_secs(3)), "{arrivals:?}");
    }
    // An accepted response states two more requests. The limiter without a quota obeys it.
    let service = ScriptedService::new(std::iter::repeat_n(ScriptedResponse::status(200), 4));
    let builder = builder().with_limiter(LocalLimiter::without_quota()).with_server_signal(signal);
    let client = builder.client_with_service(service.clone()).unwrap();
    for _ in 0..4 {
        client.get("/v1").await.unwrap();
    }
    let seen = service.seen();
    let gaps: Vec<_> = seen.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs()).collect();
    assert_eq!(gaps, [0, 0, 3]);
}

#[tokio::test(start_paused = true)]
async fn permanent_throttle_ends_the_call_and_pauses_nobody() {
    let permanent = |_: StatusCode, headers: &http::HeaderMap| {
        let is_capped = headers.get("x-reason").is_some_and(|reason| reason == "spend-cap");
        is_capped.then(|| ServerSignal::throttled().with_permanent())
    };
    let header = HeaderName::from_static("x-reason");
    let dialect = Dialect::new().with_permanent_header(header, http::HeaderValue::from_static("spend-cap"));
    let of_dialect = |builder: StackBuilder| builder.with_dialect(dialect.clone().unwrap());
    let of_signal = |builder: StackBuilder| builder.with_server_signal(permanent);
    for builder in [of_dialect(paced()), of_dialect(builder()), of_signal(paced()), of_signal(builder())] {
        let capped = response(429, &[("x-reason", "spend-cap"), ("retry-after", "3600")]);
        let service = ScriptedService::new([capped.clone(), capped, ScriptedResponse::status(200)]);
        let client = builder.client_with_service(service.clone()).unwrap();
        let start = Instant::now();
        for expected in [429, 429, 200] {
            let response = client.get("/v1").await.unwrap();
            assert_eq!((response.status().as_u16(), report(&response).attempt_count()), (expected, 1));
        }
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

/// The stream of Azure OpenAI's 200 contains the error `rate_limit_exceeded`.
#[tokio::test(start_paused = true)]
async fn signal_throttles_with_a_200_whose_header_states_the_delay() {
    let azure = |status: StatusCode, headers: &http::HeaderMap| {
        (status == 200 && headers.contains_key("retry-after")).then(ServerSignal::throttled)
    };
    let error = "event: error\ndata: {\"code\":\"rate_limit_exceeded\"}\n\n";
    for builder in [paced(), builder()] {
        let throttle = response(200, &[("retry-after", "4")]).with_body(error);
        let arrivals = arrivals(builder.with_server_signal(azure), Method::POST, throttle).await;
        // The first request is not sent again, because the server has processed it.
        assert_eq!(arrivals.len(), 4);
        assert!(arrivals.iter().all(|at| *at >= Duration::from_secs(4)), "{arrivals:?}");
    }
}

/// Anthropic sends a 429 without a delay if the spend limit is reached.
#[tokio::test(start_paused = true)]
async fn signal_ends_the_call_after_a_429_without_a_delay() {
    let anthropic = |status: StatusCode, headers: &http::HeaderMap| {
        let is_capped = status == 429 && !headers.contains_key("retry-after");
        is_capped.then(|| ServerSignal::throttled().with_permanent())
    };
    for builder in [paced(), builder()] {
        let builder = builder.with_server_signal(anthropic);
        let capped = response(429, &[]).with_body("{\"error\":{\"type\":\"rate_limit_error\"}}");
        let throttled = response(429, &[("retry-after", "25")]);
        let service = ScriptedService::new([capped, throttled, ScriptedResponse::status(200)]);
        let client = builder.client_with_service(service.clone()).unwrap();
        let start = Instant::now();
        assert_eq!(client.post("/v1").await.unwrap().status(), 429);
        assert_eq!(client.post("/v1").await.unwrap().status(), 200);
        let sent = service.arrivals().times().iter().map(|at| (*at - start).as_secs()).collect::<Vec<_>>();
        assert_eq!(sent, [0, 0, 25]);
    }
}

/// The pause does not lower the number of requests in flight.
#[tokio::test(start_paused = true)]
async fn post_is_retried_after_a_limit_of_concurrent_requests() {
    let reason = ("stripe-rate-limited-reason", "endpoint-concurrency");
    let throttle = response(429, &[reason, ("stripe-should-retry", "true")]);
    let arrivals = arrivals(paced(), Method::POST, throttle).await;
    assert_eq!(arrivals.len(), 5);
    assert!(arrivals.iter().all(|at| *at >= Duration::from_secs(1)), "{arrivals:?}");
    assert!(arrivals.iter().all(|at| *at < Duration::from_secs(2)), "{arrivals:?}");
}

/// The error is in the body, as in GraphQL, so an inner layer reads it.
#[tokio::test(start_paused = true)]
async fn mark_of_an_inner_layer_throttles_all_calls() {
    let error = "{\"errors\":[{\"extensions\":{\"code\":\"THROTTLED\"}}]}";
    let script = [response(200, &[]).with_body(error), ScriptedResponse::status(200)];
    let service = ScriptedService::new(script.into_iter().chain([ScriptedResponse::status(200)]));
    let mark = async |response: http::Response<Body>| {
        let (mut head, body) = response.into_parts();
        let body = body.bytes_up_to(1_024).await?;
        if body.windows(11).any(|part| part == b"\"THROTTLED\"") {
            head.extensions.insert(ServerSignal::throttled().with_delay(Duration::from_secs(3)));
        }
        Ok::<_, BoxError>(http::Response::from_parts(head, Body::from(body)))
    };
    let inner = ServiceBuilder::new().and_then(mark).service(service.clone());
    let client = paced().client_with_service(inner).unwrap();
    let start = Instant::now();
    let (one, other) = tokio::join!(client.get("/one").into_future(), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.get("/other").await
    });
    let one = one.unwrap();
    assert_eq!(outcomes(report(&one)), [Outcome::Response(StatusCode::OK); 2]);
    assert_eq!(other.unwrap().status(), 200);
    assert!(service.seen().iter().skip(1).all(|seen| seen.at - start >= Duration::from_secs(3)));
}
