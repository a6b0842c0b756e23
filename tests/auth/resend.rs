//! Tests of resends. The retry layer resends a request after a 401 if the auth layer replaced the rejected key.

use http::StatusCode;
use support::{
    Scripted::{self, Delayed, Headers, RetryAfter, Status},
    ScriptedService,
};
use tokio::time::{sleep, timeout};
use tower::ServiceBuilder;
use tower_outbound::{
    Quota, Report,
    call::{
        Deadline, DelayReason,
        Outcome::{self, Refused},
        StopReason,
    },
    limit::{LocalLimiter, RateLimitLayer},
    retry::{Budget, Grpc, RetryOverride},
    test_util,
};

use super::*;

const UNAUTHORIZED: Outcome = Outcome::Response(StatusCode::UNAUTHORIZED);

/// Returns a retry layer with its budget. The layer makes no retries, because `max_attempts` is 1 and the budget is
/// empty. After a 401, the layer still resends the request if the auth layer has replaced the key.
fn resend_only() -> (RetryLayer, Budget) {
    let budget = Budget::new().with_capacity(14).unwrap();
    // This call spends the whole budget on its first retry, and stays in the delay before that retry.
    let failing = RetryLayer::new().with_budget(budget.clone()).layer(ScriptedService::new([Status(503)]));
    assert!(tokio_test::task::spawn(failing.oneshot(get(URI))).poll().is_pending());
    assert_eq!(budget.left(), 0);
    (RetryLayer::new().with_max_attempts(1).unwrap().with_budget(budget.clone()), budget)
}

fn report<B>(response: &Response<B>) -> &Report {
    Report::from_response(response).unwrap()
}

/// Sends the request to a server that follows `script`. The key provider returns a new key at each fetch. Returns the
/// status of the response, the stop reason and the number of requests that the server received.
async fn send_to_script(
    retry: &RetryLayer,
    request: Request<Content>,
    script: &[Scripted],
) -> (u16, StopReason, usize) {
    let (provider, _) = key_provider(Duration::ZERO, &[Fetch::Lasting]);
    let server = ScriptedService::new(script.iter().copied());
    let response = (retry, layer(provider)).layer(server.clone()).oneshot(request).await.unwrap();
    (response.status().as_u16(), report(&response).stop_reason().unwrap(), server.calls())
}

#[tokio::test(start_paused = true)]
async fn request_of_any_method_is_resent_once_with_the_new_key() {
    for method in ["GET", "POST", "PATCH"] {
        let server = Server::accepting("key-2");
        let (provider, fetches) = key_provider(millis(300), &[Fetch::Lasting]);
        let (retry, budget) = resend_only();
        let service = (retry, layer(provider)).layer(server.clone());
        let response = service.oneshot(request(method, URI)).await.unwrap();
        assert_eq!((response.status().as_u16(), fetches.count()), (200, 2), "{method}");
        assert_eq!(server.keys(), ["key-1", "key-2"], "{method}");
        let attempts = report(&response).attempts();
        assert_eq!((attempts.len(), attempts[0].outcome), (2, Some(UNAUTHORIZED)));
        let reason = attempts[0].delay_reason.unwrap();
        assert_eq!((attempts[0].delay, reason.as_str()), (Some(Duration::ZERO), "key_replaced"));
        assert_eq!((attempts[1].delay, report(&response).stop_reason()), (None, Some(StopReason::Success)));
        assert_eq!(budget.left(), 1, "the budget was empty, and the successful call added 1 to the budget");
    }
}

/// The server sends each 401 after 25 s. The provider's backoff of at most 20 s is over by then, so each 401 causes the
/// fetch of a new key.
#[tokio::test(start_paused = true)]
async fn second_401_is_returned_even_if_the_provider_has_more_keys() {
    for retry in [RetryLayer::new(), RetryLayer::new().with_max_attempts(9).unwrap(), resend_only().0] {
        let server = Server::accepting("no key").with_latency(secs(25));
        let (provider, fetches) = key_provider(Duration::ZERO, &[Fetch::Lasting]);
        let service = (retry, layer(provider)).layer(server.clone());
        for round in 1..=3 {
            let call = timeout(secs(3_600), service.clone().oneshot(get(URI)));
            let response = call.await.expect("the call ends within an hour").unwrap();
            assert!(
                response.extensions().get::<KeyReplaced>().is_some(),
                "the auth layer replaced the second key, too"
            );
            assert_eq!((response.status().as_u16(), report(&response).attempt_count()), (401, 2));
            assert_eq!(report(&response).stop_reason(), Some(StopReason::NotRetryable));
            assert_eq!((server.keys().len(), fetches.count()), (2 * round, 2 * round));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_is_resent_with_the_key_that_another_call_fetched() {
    let server = Server::accepting("key-2").with_latency(secs(5));
    let (provider, fetches) = key_provider(millis(100), &[Fetch::Lasting]);
    let keys = KeySource::from(provider);
    let slow = layer(keys.clone()).layer(server.clone());
    let fast = layer(keys).layer(server.clone().with_latency(Duration::ZERO));
    // Both requests carry `key-1`. The slow request gets its 401 after the fast request has replaced the key.
    let slow = tokio::spawn(send_with_resend(slow));
    sleep(secs(1)).await;
    assert_eq!(send_with_resend(fast).await.unwrap().status(), 200);
    assert_eq!((server.keys().len(), fetches.count()), (3, 2));
    assert_eq!(slow.await.unwrap().unwrap().status(), 200);
    assert_eq!(server.keys(), ["key-1", "key-1", "key-2", "key-2"]);
    assert_eq!(fetches.count(), 2, "the resend of the slow request needs no key fetch");
}

#[tokio::test(start_paused = true)]
async fn resend_with_a_new_key_does_not_count_toward_max_attempts_or_budget() {
    let budget = Budget::new();
    let retry = RetryLayer::new().with_max_attempts(2).unwrap().with_budget(budget.clone());
    for (script, stop_reason, left) in [
        ([401, 503, 200], StopReason::Success, 500),
        // A successful call returns the cost of its retry to the budget, even if the call was also resent with a new
        // key.
        ([503, 401, 200], StopReason::Success, 500),
        ([401, 503, 503], StopReason::Exhausted, 486),
        ([503, 401, 503], StopReason::Exhausted, 472),
        ([503, 401, 401], StopReason::NotRetryable, 458),
    ] {
        let expected = (script[2], stop_reason, 3);
        assert_eq!(send_to_script(&retry, get(URI), &script.map(Status)).await, expected, "{script:?}");
        assert_eq!(budget.left(), left, "{script:?}");
    }
    // A resend does not lengthen the backoff: the retry after the resend waits as long as a first retry.
    let server = ScriptedService::new([Status(401), Status(503), Status(200)]);
    let layer = layer(key_provider(Duration::ZERO, &[Fetch::Lasting]).0);
    let response = (retry, layer).layer(server).oneshot(get(URI)).await.unwrap();
    assert!(report(&response).attempts()[1].delay.unwrap() <= millis(100));
}

#[tokio::test(start_paused = true)]
async fn resend_needs_a_replayable_body_and_ignores_the_retry_rules_for_the_first_401() {
    let retry = RetryLayer::new;
    let never = || RetryLayer::new().never_on([StatusCode::UNAUTHORIZED]);
    let eager = || RetryLayer::new().with_max_attempts(2).unwrap().retry_on([StatusCode::UNAUTHORIZED]);
    let limited = |limit| RetryLayer::new().with_replay_limit(limit);
    let own = RetryOverride::new;
    let one_attempt = || own().with_max_attempts(1).unwrap();
    // The server does not know that a new key is available.
    let no_retry = Headers(401, &[("x-should-retry", "false")]);
    let resent = (200, StopReason::Success, 2);
    for (number, (layer, own, method, first, expected)) in [
        (limited(5), own(), "POST", Status(401), resent),
        (limited(4), own(), "POST", Status(401), (401, StopReason::NotReplayable, 1)),
        (limited(5), own(), "POST", Scripted::KeepsBody(401), (401, StopReason::NotReplayable, 1)),
        (never(), own(), "GET", Status(401), resent),
        (never(), own(), "GET", no_retry, resent),
        (retry(), one_attempt(), "GET", Status(401), resent),
        (retry(), own().without_retries(), "GET", Status(401), (401, StopReason::NotRetryable, 1)),
        (retry(), own().without_retries().with_max_attempts(1).unwrap(), "GET", Status(401), resent),
    ]
    .into_iter()
    .enumerate()
    {
        let mut request = request(method, URI);
        request.extensions_mut().insert(own);
        let result = send_to_script(&layer, request, &[first, Status(200)]).await;
        assert_eq!(result, expected, "case {number}");
    }
    // Even with `retry_on(401)`, the retry layer retries only idempotent requests. Besides the resend, it makes at most
    // `max_attempts` attempts.
    let always = [Status(401)];
    assert_eq!(send_to_script(&eager(), get(URI), &always).await, (401, StopReason::Exhausted, 3));
    let post = request("POST", URI);
    assert_eq!(send_to_script(&eager(), post, &always).await, (401, StopReason::NotIdempotent, 2));
}

#[tokio::test(start_paused = true)]
async fn resend_obeys_the_requested_delay_and_the_deadline() {
    let (provider, _) = key_provider(Duration::ZERO, &[Fetch::Lasting]);
    let server = ScriptedService::new([RetryAfter(401, "3"), Status(200)]);
    let service = (RetryLayer::new(), layer(provider)).layer(server.clone());
    let response = service.oneshot(get(URI)).await.unwrap();
    let attempt = &report(&response).attempts()[0];
    assert_eq!((attempt.delay, attempt.delay_reason), (Some(secs(3)), Some(DelayReason::Requested)));
    assert!(server.seen()[1].at - server.seen()[0].at >= secs(3));
    // The retry layer ignores a requested delay of zero, so the reported reason for the delay is the replaced key.
    let service = (RetryLayer::new(), layer(key_provider(Duration::ZERO, &[Fetch::Lasting]).0));
    let response = service
        .layer(ScriptedService::new([RetryAfter(401, "0"), Status(200)]))
        .oneshot(get(URI))
        .await
        .unwrap();
    let attempt = &report(&response).attempts()[0];
    assert_eq!((attempt.delay, attempt.delay_reason), (Some(Duration::ZERO), Some(DelayReason::KeyReplaced)));
    let script = [RetryAfter(401, "121"), Status(200)];
    assert_eq!(
        send_to_script(&RetryLayer::new(), get(URI), &script).await,
        (401, StopReason::RequestedDelayTooLong, 1)
    );

    let mut late = get(URI);
    late.extensions_mut().insert(Deadline::after(millis(50)));
    let script = [Delayed(50, 401), Status(200)];
    assert_eq!(send_to_script(&RetryLayer::new(), late, &script).await, (401, StopReason::Deadline, 1));
}

#[tokio::test(start_paused = true)]
async fn limiter_can_refuse_a_resend() {
    for (quota, succeeds) in [(2, true), (1, false)] {
        let window = LocalLimiter::sliding_window(Quota::new(quota, secs(60)).unwrap());
        let (provider, _) = key_provider(Duration::ZERO, &[Fetch::Lasting]);
        let (retry, budget) = resend_only();
        let server = ScriptedService::new([Status(401), Status(200)]);
        let service = ServiceBuilder::new()
            .layer(retry)
            .layer(RateLimitLayer::new(window).with_max_wait(millis(500)))
            .layer(layer(provider))
            .service(server.clone());
        let result = service.clone().oneshot(get(URI)).await;
        assert_eq!((result.is_ok(), server.calls()), (succeeds, quota as usize));
        // The call returns the limiter's refusal instead of the 401, because the body of the 401 is already drained.
        if let Err(error) = result {
            assert!(error.is_rate_limited() && error.retry_after().unwrap() > secs(59), "{error:?}");
            let outcomes = error.report().unwrap().attempts();
            assert!(outcomes.iter().map(|attempt| attempt.outcome.unwrap()).eq([UNAUTHORIZED, Refused]));
            assert_eq!(budget.left(), 0);
        }
        assert!(
            service.oneshot(get(URI)).await.unwrap_err().is_rate_limited(),
            "the quota of {quota} is spent"
        );
    }
}

/// The server may have processed a gRPC call before it returned `UNAUTHENTICATED`.
#[tokio::test(start_paused = true)]
async fn idempotent_grpc_call_is_resent_once_after_unauthenticated() {
    const UNAUTHENTICATED: Scripted =
        Headers(200, &[("content-type", "application/grpc"), ("grpc-status", "16")]);
    for (method, declared_idempotent, expected) in [
        ("POST", false, &["key-1"][..]),
        ("POST", true, &["key-1", "key-2"]),
        ("PUT", false, &["key-1", "key-2"]),
    ] {
        let (provider, fetches) = key_provider(Duration::ZERO, &[Fetch::Lasting]);
        let server = ScriptedService::new([UNAUTHENTICATED, UNAUTHENTICATED, Status(200)]);
        let (retry, budget) = resend_only();
        let service = (retry, layer(provider)).layer(server.clone());
        let mut call = request(method, URI);
        if declared_idempotent {
            call.extensions_mut().insert(RetryOverride::new().with_idempotent());
        }
        let response = service.clone().oneshot(call).await.unwrap();
        let sent_keys = |server: &ScriptedService| -> Vec<String> {
            let key = |seen: &support::Seen| seen.header("authorization").unwrap().replace("Bearer ", "");
            server.seen().iter().map(key).collect()
        };
        assert_eq!(sent_keys(&server), expected, "{method}, declared idempotent: {declared_idempotent}");
        assert_eq!(
            response.headers()["grpc-status"],
            "16",
            "the call is resent only once: {method}, declared idempotent: {declared_idempotent}"
        );
        assert!(budget.left() < 14, "the resend does not refill the budget");
        let before = fetches.count();
        service.oneshot(request("GET", URI)).await.unwrap();
        assert!(
            before >= 1 && sent_keys(&server).last().unwrap() == "key-2",
            "{method}, declared idempotent: {declared_idempotent}, sent keys: {:?}",
            sent_keys(&server)
        );
    }
}

/// A negative or invalid `grpc-retry-pushback-ms` prevents the resend, and a positive value delays the resend.
#[tokio::test(start_paused = true)]
async fn grpc_pushback_delays_or_prevents_the_resend() {
    for (pushback, expected) in [("-1", (1, 0)), ("soon", (1, 0)), ("0", (2, 0)), ("250", (2, 250))] {
        let (provider, fetches) = key_provider(Duration::ZERO, &[Fetch::Lasting]);
        let unauthenticated = test_util::ScriptedResponse::status(200)
            .with_header("content-type", "application/grpc")
            .with_header("grpc-status", "16")
            .with_header("grpc-retry-pushback-ms", pushback);
        let server = ScriptedService::new([unauthenticated, test_util::ScriptedResponse::status(200)]);
        let retry = RetryLayer::new().with_classify(Grpc::new()).with_idempotent(|_| true);
        let service = (retry, layer(provider)).layer(server.clone());
        let start = tokio::time::Instant::now();
        service.clone().oneshot(request("POST", URI)).await.unwrap();
        let elapsed = start.elapsed().as_millis();
        assert_eq!((server.calls(), elapsed / 10 * 10), expected, "{pushback}");
        // The auth layer replaces the key even if `grpc-retry-pushback-ms` prevents the resend.
        service.oneshot(request("POST", URI)).await.unwrap();
        let last = server.seen().last().unwrap().header("authorization").unwrap().to_owned();
        assert_eq!((last.as_str(), fetches.count()), ("Bearer key-2", 2), "{pushback}");
    }
}

#[tokio::test(start_paused = true)]
async fn grpc_codes_other_than_unauthenticated_do_not_replace_the_key() {
    for code in ["0", "7", "14", "x"] {
        let (provider, fetches) = key_provider(Duration::ZERO, &[Fetch::Lasting]);
        let response = test_util::ScriptedResponse::status(200).with_header("grpc-status", code);
        let server = ScriptedService::new([response]);
        let service = (RetryLayer::new(), layer(provider)).layer(server.clone());
        service.oneshot(request("PUT", URI)).await.unwrap();
        assert_eq!((server.calls(), fetches.count()), (1, 1), "{code}");
    }
}
