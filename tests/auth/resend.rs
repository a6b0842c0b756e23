//! Tests of resends. The retry layer resends a request after a 401 if the auth layer replaced the rejected key.

use http::StatusCode;
use support::Scripted::{self, Delayed, Headers, RetryAfter};
use tokio::time::{sleep, timeout};
use tower::ServiceBuilder;
use tower_outbound::{
    Quota, Report,
    call::{
        Deadline, DelayReason,
        Outcome::{self, Refused},
        StopReason,
    },
    limit::{Dialect, LocalLimiter, RateLimitLayer},
    retry::{Budget, Grpc, RetryOverride},
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

fn report(response: &Response) -> &Report {
    Report::from_response(response).unwrap()
}

/// Returns an auth layer whose key provider returns another key at each fetch, and its fetch counter.
fn replacing() -> (AuthLayer, FetchCount) {
    let (provider, fetches) = key_provider(Duration::ZERO, &[Fetch::Lasting]);
    (layer(provider), fetches)
}

/// Sends the request to a server that follows `script`. Returns the status of the response, the stop reason
/// and the number of requests that the server received.
async fn send_to_script(
    retry: &RetryLayer,
    request: Request<Content>,
    script: &[Scripted],
) -> (u16, StopReason, usize) {
    let server = ScriptedService::new(script.iter().copied());
    let response = (retry, replacing().0).layer(server.clone()).oneshot(request).await.unwrap();
    (response.status().as_u16(), report(&response).stop_reason().unwrap(), server.calls())
}

#[tokio::test(start_paused = true)]
async fn request_of_any_method_is_resent_once_with_the_new_key() {
    for method in ["GET", "POST", "PATCH"] {
        let server = Server::accepting("key-2");
        let (provider, fetches) = key_provider(millis(300), &[Fetch::Lasting]);
        let (retry, budget) = resend_only();
        let service = (retry, layer(provider)).layer(server.service.clone());
        let response = service.oneshot(request(method, URI)).await.unwrap();
        assert_eq!((response.status().as_u16(), fetches.count()), (200, 2), "{method}");
        assert_eq!(server.keys(), ["key-1", "key-2"], "{method}");
        assert!(server.service.seen().iter().all(|seen| seen.body.as_deref() == Some(b"hello")), "{method}");
        let attempts = report(&response).attempts();
        assert_eq!((attempts.len(), attempts[0].outcome), (2, Some(UNAUTHORIZED)));
        let reason = attempts[0].delay_reason.unwrap();
        assert_eq!((attempts[0].delay, reason.as_str()), (Some(Duration::ZERO), "key_replaced"));
        assert_eq!((attempts[1].delay, report(&response).stop_reason()), (None, Some(StopReason::Success)));
        assert_eq!(budget.left(), 1, "the budget was empty, and the successful call added 1 to the budget");
    }
}

/// Ably reports a used-up quota with a 401. Another key does not change it.
#[tokio::test(start_paused = true)]
async fn request_is_not_resent_after_a_401_that_is_permanent() {
    let header = "x-code".parse::<http::HeaderName>().unwrap();
    let dialect =
        Dialect::new().with_permanent_header(header, http::HeaderValue::from_static("40112")).unwrap();
    let retry = RetryLayer::new().with_dialect(dialect);
    let script = [Headers(401, &[("x-code", "40112")]), Status(200)];
    let (status, reason, sent) = send_to_script(&retry, get(URI), &script).await;
    assert_eq!((status, reason, sent), (401, StopReason::NotRetryable, 1));
    let script = [Headers(401, &[("x-code", "40140")]), Status(200)];
    assert_eq!(send_to_script(&retry, get(URI), &script).await.2, 2);
}

/// The server sends each 401 after 25 s. The provider's backoff of at most 20 s is over by then, so each 401 causes the
/// fetch of a new key.
#[tokio::test(start_paused = true)]
async fn second_401_is_returned_even_if_the_provider_has_more_keys() {
    for retry in [RetryLayer::new(), RetryLayer::new().with_max_attempts(9).unwrap(), resend_only().0] {
        let server = Server::slow("no key", secs(25));
        let (layer, fetches) = replacing();
        let service = (retry, layer).layer(server.service.clone());
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
    let (slow, fast) = (Server::slow("key-2", secs(5)), Server::accepting("key-2"));
    let (provider, fetches) = key_provider(millis(100), &[Fetch::Lasting]);
    let keys = KeySource::from(provider);
    // Both requests carry `key-1`. The slow request gets its 401 after the fast request has replaced the key.
    let slow_call = tokio::spawn(send_with_resend(client(keys.clone(), &slow)));
    sleep(secs(1)).await;
    assert_eq!(send_with_resend(client(keys, &fast)).await.unwrap().status(), 200);
    assert_eq!((fast.keys().len(), fetches.count()), (2, 2));
    assert_eq!(slow_call.await.unwrap().unwrap().status(), 200);
    assert_eq!(slow.keys(), ["key-1", "key-2"]);
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
    let response = (retry, replacing().0).layer(server).oneshot(get(URI)).await.unwrap();
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
    let server = ScriptedService::new([RetryAfter(401, "3"), Status(200)]);
    let service = (RetryLayer::new(), replacing().0).layer(server.clone());
    let response = service.oneshot(get(URI)).await.unwrap();
    let attempt = &report(&response).attempts()[0];
    assert_eq!((attempt.delay, attempt.delay_reason), (Some(secs(3)), Some(DelayReason::Requested)));
    assert!(server.seen()[1].at - server.seen()[0].at >= secs(3));
    // The retry layer ignores a requested delay of zero, so the reported reason for the delay is the replaced key.
    let server = ScriptedService::new([RetryAfter(401, "0"), Status(200)]);
    let service = (RetryLayer::new(), replacing().0).layer(server);
    let response = service.oneshot(get(URI)).await.unwrap();
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
        let (retry, budget) = resend_only();
        let server = ScriptedService::new([Status(401), Status(200)]);
        let service = ServiceBuilder::new()
            .layer(retry)
            .layer(RateLimitLayer::new(window).with_max_wait(millis(500)))
            .layer(replacing().0)
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

/// The server may have processed a gRPC call before it returned `UNAUTHENTICATED`, so only an idempotent call is
/// resent. A negative or invalid `grpc-retry-pushback-ms` prevents the resend, and a positive value delays it.
#[tokio::test(start_paused = true)]
async fn idempotent_grpc_call_is_resent_once_after_unauthenticated_and_after_the_pushback() {
    // The method, whether the caller declares the call idempotent, the pushback, the number of requests, and the time
    // between them in milliseconds.
    for (method, is_declared, pushback, requests, elapsed) in [
        ("POST", false, None, 1, 0),
        ("POST", true, None, 2, 0),
        ("PUT", false, None, 2, 0),
        ("PUT", false, Some("-1"), 1, 0),
        ("PUT", false, Some("soon"), 1, 0),
        ("PUT", false, Some("0"), 2, 0),
        ("PUT", false, Some("250"), 2, 250),
    ] {
        let case = format!("{method}, declared idempotent: {is_declared}, pushback: {pushback:?}");
        let unauthenticated = ScriptedResponse::status(200)
            .with_header("content-type", "application/grpc")
            .with_header("grpc-status", "16");
        let unauthenticated = match pushback {
            Some(pushback) => unauthenticated.with_header("grpc-retry-pushback-ms", pushback),
            None => unauthenticated,
        };
        let server = ScriptedService::new([unauthenticated.clone(), unauthenticated, 200.into()]);
        let ((retry, budget), (layer, fetches)) = (resend_only(), replacing());
        // The resend needs no classifier for gRPC.
        let retry = if pushback.is_some() { retry.with_classify(Grpc::new()) } else { retry };
        let service = (retry, layer).layer(server.clone());
        let mut call = request(method, URI);
        if is_declared {
            call.extensions_mut().insert(RetryOverride::new().with_idempotent());
        }
        let start = Instant::now();
        let response = service.clone().oneshot(call).await.unwrap();
        assert_eq!((server.calls(), start.elapsed().as_millis() / 10 * 10), (requests, elapsed), "{case}");
        assert_eq!(response.headers()["grpc-status"], "16", "the call is resent only once: {case}");
        assert!(budget.left() < 14, "the resend does not refill the budget");
        // The auth layer replaces the key even if the call is not resent.
        service.oneshot(get(URI)).await.unwrap();
        let keys: Vec<_> = server.seen().iter().map(key_of).collect();
        assert!(keys[0] == "key-1" && keys[1..].iter().all(|key| key == "key-2"), "{case}: {keys:?}");
        assert_eq!(fetches.count(), 2, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn grpc_codes_other_than_unauthenticated_do_not_replace_the_key() {
    for code in ["0", "7", "14", "x"] {
        let (layer, fetches) = replacing();
        let response = ScriptedResponse::status(200).with_header("grpc-status", code);
        let server = ScriptedService::new([response]);
        (RetryLayer::new(), layer).layer(server.clone()).oneshot(request("PUT", URI)).await.unwrap();
        assert_eq!((server.calls(), fetches.count()), (1, 1), "{code}");
    }
}
