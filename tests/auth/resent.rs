//! A 401 whose key is replaced, through the retry layer.

use http::StatusCode;
use support::{
    Scripted::{self, Delayed, Headers, RetryAfter, Status},
    ScriptedService,
};
use tokio::time::{sleep, timeout};
use tower::ServiceBuilder;
use tower_outbound::{
    Body, Quota, Report,
    call::{
        Deadline, DelayReason,
        Outcome::{self, Refused},
        StopReason,
    },
    limit::{RateLimitLayer, SlidingWindow},
    preset,
    retry::{Budget, Grpc, RetryOverride},
    test_util,
};

use super::*;

const UNAUTHORIZED: Outcome = Outcome::Response(StatusCode::UNAUTHORIZED);

/// Returns a layer that makes no other retry: one attempt, and a budget that is spent.
fn strict() -> (RetryLayer, Budget) {
    let budget = Budget::new().with_capacity(14).unwrap();
    // A retry that waits for its backoff spends all of it.
    let failing = RetryLayer::new().with_budget(budget.clone()).layer(ScriptedService::new([Status(503)]));
    assert!(tokio_test::task::spawn(failing.oneshot(get(URI))).poll().is_pending());
    assert_eq!(budget.left(), 0);
    (RetryLayer::new().with_max_attempts(1).unwrap().with_budget(budget.clone()), budget)
}

fn report<B>(response: &Response<B>) -> &Report {
    Report::from_response(response).unwrap()
}

/// Sends the request to a server that responds by `script`, with a provider that always has another key. Returns the
/// status of the response, the stop reason and the number of requests that the server received.
async fn scripted(
    retry: &RetryLayer,
    request: Request<Content>,
    script: &[Scripted],
) -> (u16, StopReason, usize) {
    let (provided, _) = provided(Duration::ZERO, &[Fetch::Lasting]);
    let probe = ScriptedService::new(script.iter().copied());
    let response = (retry, layer(provided)).layer(probe.clone()).oneshot(request).await.unwrap();
    (response.status().as_u16(), report(&response).stop_reason().unwrap(), probe.calls())
}

#[tokio::test(start_paused = true)]
async fn resends_every_method_once_with_the_new_key() {
    for method in ["GET", "POST", "PATCH"] {
        let server = Server::accepting("key-2");
        let (provided, asked) = provided(millis(300), &[Fetch::Lasting]);
        let (retry, budget) = strict();
        let service = (retry, layer(provided)).layer(server.clone());
        let response = service.oneshot(request(method, URI)).await.unwrap();
        assert_eq!((response.status().as_u16(), asked.times()), (200, 2), "{method}");
        assert_eq!(server.keys(), ["key-1", "key-2"], "{method}");
        let attempts = report(&response).attempts();
        assert_eq!((attempts.len(), attempts[0].outcome), (2, Some(UNAUTHORIZED)));
        let reason = attempts[0].delay_reason.unwrap();
        assert_eq!((attempts[0].delay, reason.as_str()), (Some(Duration::ZERO), "key_replaced"));
        assert_eq!((attempts[1].delay, report(&response).stop_reason()), (None, Some(StopReason::Success)));
        assert_eq!(budget.left(), 1, "the budget was spent, and a success at the first attempt returns 1");
    }
}

/// The provider always has another key, and each is rejected later than the longest backoff of the keys.
#[tokio::test(start_paused = true)]
async fn returns_the_second_401_even_if_there_are_more_keys() {
    for retry in [RetryLayer::new(), RetryLayer::new().with_max_attempts(9).unwrap(), strict().0] {
        let server = Server::accepting("none of them").after(secs(25));
        let (provided, asked) = provided(Duration::ZERO, &[Fetch::Lasting]);
        let service = (retry, layer(provided)).layer(server.clone());
        for round in 1..=3 {
            let call = timeout(secs(3_600), service.clone().oneshot(get(URI)));
            let response = call.await.expect("the call does not end").unwrap();
            assert!(response.extensions().get::<KeyReplaced>().is_some(), "there is another key");
            assert_eq!((response.status().as_u16(), report(&response).attempt_count()), (401, 2));
            assert_eq!(report(&response).stop_reason(), Some(StopReason::NotRetryable));
            assert_eq!((server.keys().len(), asked.times()), (2 * round, 2 * round));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn does_not_replace_a_key_again_that_another_call_replaced() {
    let server = Server::accepting("key-2").after(secs(5));
    let (provided, asked) = provided(millis(100), &[Fetch::Lasting]);
    let keys = KeySource::from(provided);
    let slow = layer(keys.clone()).layer(server.clone());
    let quick = layer(keys).layer(server.clone().after(Duration::ZERO));
    // Both requests carry key-1. The response to one of them is slow.
    let slow = tokio::spawn(send_again(slow));
    sleep(secs(1)).await;
    assert_eq!(send_again(quick).await.unwrap().status(), 200);
    assert_eq!((server.keys().len(), asked.times()), (3, 2));
    assert_eq!(slow.await.unwrap().unwrap().status(), 200);
    assert_eq!(server.keys(), ["key-1", "key-1", "key-2", "key-2"]);
    assert_eq!(asked.times(), 2, "the current key is used");
}

#[tokio::test(start_paused = true)]
async fn does_not_resend_a_fixed_key() {
    let server = Server::accepting("none of them");
    let client = client(ApiKey::new("fixed").unwrap(), &server);
    let response = RetryLayer::new().layer(client).oneshot(get(URI)).await.unwrap();
    assert_eq!((response.status().as_u16(), server.keys().len()), (401, 1));
    assert_eq!(report(&response).stop_reason(), Some(StopReason::NotRetryable));
}

#[tokio::test(start_paused = true)]
async fn returns_the_401_if_the_body_was_not_recorded() {
    let kept = RetryLayer::new().with_replay_limit(5);
    let script = [Status(401), Status(200)];
    assert_eq!(scripted(&kept, request("POST", URI), &script).await, (200, StopReason::Success, 2));
    let over = RetryLayer::new().with_replay_limit(4);
    assert_eq!(scripted(&over, request("POST", URI), &script).await, (401, StopReason::NotReplayable, 1));
    // A body that the server did not read to its end is not resent, either.
    let script = [Scripted::KeepsBody(401), Status(200)];
    assert_eq!(scripted(&kept, request("POST", URI), &script).await, (401, StopReason::NotReplayable, 1));
}

#[tokio::test(start_paused = true)]
async fn a_resend_counts_neither_as_an_attempt_nor_against_the_budget() {
    let budget = Budget::new();
    let retry = RetryLayer::new().with_max_attempts(2).unwrap().with_budget(budget.clone());
    for (script, ended, left) in [
        ([401, 503, 200], StopReason::Success, 500),
        // A retry gets its cost back if the call succeeds, also with another key.
        ([503, 401, 200], StopReason::Success, 500),
        ([401, 503, 503], StopReason::Exhausted, 486),
        ([503, 401, 503], StopReason::Exhausted, 472),
        ([503, 401, 401], StopReason::NotRetryable, 458),
    ] {
        let expected = (script[2], ended, 3);
        assert_eq!(scripted(&retry, get(URI), &script.map(Status)).await, expected, "{script:?}");
        assert_eq!(budget.left(), left, "{script:?}");
    }
    // The backoff after the resend is the first one.
    let probe = ScriptedService::new([Status(401), Status(503), Status(200)]);
    let layer = layer(provided(Duration::ZERO, &[Fetch::Lasting]).0);
    let response = (retry, layer).layer(probe).oneshot(get(URI)).await.unwrap();
    assert!(report(&response).attempts()[1].delay.unwrap() <= millis(100));
}

#[tokio::test(start_paused = true)]
async fn rules_decide_on_the_second_401_and_not_on_the_first() {
    let never = RetryLayer::new().never_on(StatusCode::UNAUTHORIZED);
    assert_eq!(scripted(&never, get(URI), &[Status(401), Status(200)]).await, (200, StopReason::Success, 2));
    // `x-should-retry: false` does not prevent the resend, because the server does not know that there is another key.
    let asks = Scripted::Headers(401, &[("x-should-retry", "false")]);
    assert_eq!(scripted(&never, get(URI), &[asks, Status(200)]).await, (200, StopReason::Success, 2));
    // A rule that retries after a 401 is subject to the usual limits.
    let eager = RetryLayer::new().with_max_attempts(2).unwrap();
    let eager = eager.retry_on(StatusCode::UNAUTHORIZED);
    assert_eq!(scripted(&eager, get(URI), &[Status(401)]).await, (401, StopReason::Exhausted, 3));
    assert_eq!(
        scripted(&eager, request("POST", URI), &[Status(401)]).await,
        (401, StopReason::NotIdempotent, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_can_disable_the_resend() {
    let script = [Status(401), Status(200)];
    for (own, expected) in [
        (RetryOverride::new().with_max_attempts(1).unwrap(), (200, StopReason::Success, 2)),
        (RetryOverride::new().without_retries(), (401, StopReason::NotRetryable, 1)),
        (RetryOverride::new().without_retries().with_max_attempts(1).unwrap(), (200, StopReason::Success, 2)),
    ] {
        let mut request = get(URI);
        request.extensions_mut().insert(own);
        assert_eq!(scripted(&RetryLayer::new(), request, &script).await, expected, "{own:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_resend_obeys_the_requested_delay_and_the_deadline() {
    let (provided, _) = provided(Duration::ZERO, &[Fetch::Lasting]);
    let probe = ScriptedService::new([RetryAfter(401, "3"), Status(200)]);
    let service = (RetryLayer::new(), layer(provided)).layer(probe.clone());
    let response = service.oneshot(get(URI)).await.unwrap();
    let attempt = &report(&response).attempts()[0];
    assert_eq!((attempt.delay, attempt.delay_reason), (Some(secs(3)), Some(DelayReason::Requested)));
    assert!(probe.seen()[1].at - probe.seen()[0].at >= secs(3));
    // A requested delay of zero does not count, so the reason is the replaced key.
    let service = (RetryLayer::new(), layer(self::provided(Duration::ZERO, &[Fetch::Lasting]).0));
    let response = service
        .layer(ScriptedService::new([RetryAfter(401, "0"), Status(200)]))
        .oneshot(get(URI))
        .await
        .unwrap();
    let attempt = &report(&response).attempts()[0];
    assert_eq!((attempt.delay, attempt.delay_reason), (Some(Duration::ZERO), Some(DelayReason::KeyReplaced)));
    let script = [RetryAfter(401, "121"), Status(200)];
    assert_eq!(
        scripted(&RetryLayer::new(), get(URI), &script).await,
        (401, StopReason::RequestedDelayTooLong, 1)
    );

    let mut late = get(URI);
    late.extensions_mut().insert(Deadline::after(millis(50)));
    let script = [Delayed(50, 401), Status(200)];
    assert_eq!(scripted(&RetryLayer::new(), late, &script).await, (401, StopReason::Deadline, 1));
}

#[tokio::test(start_paused = true)]
async fn a_resend_takes_a_permit_and_may_be_refused() {
    for (quota, answered) in [(2, true), (1, false)] {
        let window = SlidingWindow::new(Quota::new(quota, secs(60)).unwrap());
        let (provided, _) = provided(Duration::ZERO, &[Fetch::Lasting]);
        let (retry, budget) = strict();
        let probe = ScriptedService::new([Status(401), Status(200)]);
        let service = ServiceBuilder::new()
            .layer(retry)
            .layer(RateLimitLayer::new(window).with_max_wait(millis(500)))
            .layer(layer(provided))
            .service(probe.clone());
        let result = service.clone().oneshot(get(URI)).await;
        assert_eq!((result.is_ok(), probe.calls()), (answered, quota as usize));
        // The call returns the refusal, because the body of the response is gone.
        if let Err(error) = result {
            assert!(error.is_rate_limited() && error.retry_after().unwrap() > secs(59), "{error:?}");
            let outcomes = error.report().unwrap().attempts();
            assert!(outcomes.iter().map(|attempt| attempt.outcome.unwrap()).eq([UNAUTHORIZED, Refused]));
            assert_eq!(budget.left(), 0);
        }
        assert!(service.oneshot(get(URI)).await.unwrap_err().is_rate_limited(), "all {quota} are spent");
    }
}

/// A custom layer that replaces keys sets the same mark. It counts on a 401 only.
#[tokio::test(start_paused = true)]
async fn the_mark_counts_on_a_401_only() {
    for (status, expected) in [(401, 2), (403, 1), (200, 1)] {
        let probe = ScriptedService::new([Status(status), Status(200)]);
        let marked = ServiceBuilder::new()
            .layer(RetryLayer::new())
            .map_response(|mut response: Response<Body>| {
                response.extensions_mut().insert(KeyReplaced);
                response
            })
            .service(probe.clone());
        marked.oneshot(get(URI)).await.unwrap();
        assert_eq!(probe.calls(), expected, "{status}");
    }
}

/// The whole stack in its usual order, without any other retry.
#[tokio::test(start_paused = true)]
async fn fifty_concurrent_401s_of_a_preset_cause_one_refresh() {
    let server = Server::accepting("key-2").after(millis(20));
    let (provided, asked) = provided(millis(300), &[Fetch::Lasting]);
    let preset = preset::realtime_messaging(URI).unwrap().with_keys(provided).with_retry(strict().0);
    let service = preset.layer().unwrap().layer(server.clone());
    let ended = together(50, || service.clone().oneshot(request("POST", URI))).await;
    assert!(ended.iter().all(|ended| ended.as_ref().unwrap().status() == 200));
    let keys = server.keys();
    assert_eq!(
        (asked.times(), keys.len()),
        (2, 100),
        "one key for all calls, and one replacement; each call is sent twice"
    );
    assert_eq!(keys.iter().filter(|key| *key == "key-1").count(), 50);
}

/// gRPC does not guarantee that such a call was not processed.
#[tokio::test(start_paused = true)]
async fn resends_an_idempotent_grpc_call_once_after_unauthenticated() {
    const REFUSED: Scripted = Headers(200, &[("content-type", "application/grpc"), ("grpc-status", "16")]);
    for (method, said, expected) in [
        ("POST", false, &["key-1"][..]),
        ("POST", true, &["key-1", "key-2"]),
        ("PUT", false, &["key-1", "key-2"]),
    ] {
        let (provided, asked) = provided(Duration::ZERO, &[Fetch::Lasting]);
        let probe = ScriptedService::new([REFUSED, REFUSED, Status(200)]);
        let (retry, budget) = strict();
        let service = (retry, layer(provided)).layer(probe.clone());
        let mut call = request(method, URI);
        if said {
            call.extensions_mut().insert(RetryOverride::new().with_idempotent());
        }
        let response = service.clone().oneshot(call).await.unwrap();
        let sent = |probe: &ScriptedService| -> Vec<String> {
            let key = |seen: &support::Seen| seen.header("authorization").unwrap().replace("Bearer ", "");
            probe.seen().iter().map(key).collect()
        };
        assert_eq!(sent(&probe), expected, "{method} {said}");
        assert_eq!(response.headers()["grpc-status"], "16", "{method} {said}: resent only once");
        assert!(budget.left() < 14, "the resend changes no cost");
        let before = asked.times();
        service.oneshot(request("GET", URI)).await.unwrap();
        assert!(
            before >= 1 && sent(&probe).last().unwrap() == "key-2",
            "{method} {said}: {:?}",
            sent(&probe)
        );
    }
}

/// A negative or invalid pushback forbids the resend, too, and a positive one delays it.
#[tokio::test(start_paused = true)]
async fn the_resend_after_unauthenticated_obeys_the_pushback() {
    for (pushback, expected) in [("-1", (1, 0)), ("soon", (1, 0)), ("0", (2, 0)), ("250", (2, 250))] {
        let (provided, asked) = provided(Duration::ZERO, &[Fetch::Lasting]);
        let refused = test_util::ScriptedResponse::status(200)
            .with_header("content-type", "application/grpc")
            .with_header("grpc-status", "16")
            .with_header("grpc-retry-pushback-ms", pushback);
        let probe = ScriptedService::new([refused, test_util::ScriptedResponse::status(200)]);
        let retry = RetryLayer::new().with_classify(Grpc::new()).with_idempotent(|_| true);
        let service = (retry, layer(provided)).layer(probe.clone());
        let start = tokio::time::Instant::now();
        service.clone().oneshot(request("POST", URI)).await.unwrap();
        let took = start.elapsed().as_millis();
        assert_eq!((probe.calls(), took / 10 * 10), expected, "{pushback}");
        // The key is replaced in any case.
        service.oneshot(request("POST", URI)).await.unwrap();
        let last = probe.seen().last().unwrap().header("authorization").unwrap().to_owned();
        assert_eq!((last.as_str(), asked.times()), ("Bearer key-2", 2), "{pushback}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_other_grpc_code_replaces_the_key() {
    for code in ["0", "7", "14", "x"] {
        let (provided, asked) = provided(Duration::ZERO, &[Fetch::Lasting]);
        let answer = test_util::ScriptedResponse::status(200).with_header("grpc-status", code);
        let probe = ScriptedService::new([answer]);
        let service = (RetryLayer::new(), layer(provided)).layer(probe.clone());
        service.oneshot(request("PUT", URI)).await.unwrap();
        assert_eq!((probe.calls(), asked.times()), (1, 1), "{code}");
    }
}
