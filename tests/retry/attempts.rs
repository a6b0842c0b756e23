//! Tests which facts about the attempts of a call reach custom classifiers and rules, the report, the error, and an
//! outer layer.

use std::io::ErrorKind::*;

use tower_outbound::call::{Delivery, StopReason::*};

use super::{
    support::{Scripted::*, request},
    *,
};

#[tokio::test(start_paused = true)]
async fn custom_rule_receives_the_original_request_and_each_attempt_result() {
    #[derive(Clone, Debug, PartialEq)]
    struct CallerExtension;
    let results = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&results);
    let record = move |request: RequestHead<'_>, attempt: &AttemptResult<'_>| {
        assert_eq!((request.method, request.uri.path()), (&Method::PUT, "/v1"));
        assert_eq!(request.headers["x-caller"], "1");
        assert_eq!(request.extensions.get(), Some(&CallerExtension));
        assert!(request.extensions.get::<CallContext>().is_some_and(|call| call.deadline().is_none()));
        recorded.lock().unwrap().push(match (attempt.outcome.status(), attempt.headers, attempt.error) {
            (Some(status), Some(headers), None) => format!("{status} {}", headers.len()),
            (None, None, Some(error)) => format!("{error:#} {:?}", attempt.outcome.delivery()),
            _ => format!("{attempt:?}"),
        });
        false
    };
    let mut request = request("PUT", URI);
    request.headers_mut().insert("x-caller", HeaderValue::from_static("1"));
    request.extensions_mut().insert(CallerExtension);
    let inner = ScriptedService::new([
        Headers(503, &[("x-a", "1"), ("x-b", "2")]),
        Refused,
        Io(ConnectionReset),
        Status(404),
    ]);
    let layer = RetryLayer::new().with_max_attempts(9).unwrap().retry_if(record);
    layer.layer(inner).oneshot(request).await.unwrap();
    assert_eq!(
        *results.lock().unwrap(),
        [
            "503 Service Unavailable 2",
            "connection refused after 2 attempts: connection refused NotSent",
            "connection or stream reset by the server after 3 attempts: connection reset MaybeProcessed",
            "404 Not Found 0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn report_of_a_successful_call_contains_every_attempt() {
    let inner = ScriptedService::new([
        Headers(429, &[("retry-after", "2")]),
        Io(ConnectionReset),
        Refused,
        NoResponse,
        Status(529),
        Delayed(30, 200),
    ]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().with_max_attempts(9).unwrap())
        .layer(AttemptTimeoutLayer::new(secs(1)).unwrap())
        .service(inner.clone());
    let start = Instant::now();
    let response = service.oneshot(get(URI)).await.unwrap();
    let report = report(&response);
    assert_eq!((report.stop_reason(), report.attempt_count()), (Some(Success), 6));
    assert_eq!((report.request_id(), report.queued()), (None, Duration::ZERO));
    let attempts = report.attempts();
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome.unwrap()).collect();
    let rejected = |status| Outcome::Rejected(StatusCode::from_u16(status).unwrap());
    let expected = [
        (rejected(429), Delivery::Rejected),
        (Outcome::Failed, Delivery::MaybeProcessed),
        (Outcome::NotSent, Delivery::NotSent),
        (Outcome::Timeout, Delivery::MaybeProcessed),
        (rejected(529), Delivery::Rejected),
        (Outcome::Response(StatusCode::OK), Delivery::Processed),
    ];
    assert!(outcomes.iter().map(|outcome| (*outcome, outcome.delivery())).eq(expected), "{outcomes:?}");
    let requested_delays: Vec<_> = attempts.iter().filter_map(|attempt| attempt.requested_delay).collect();
    assert_eq!((attempts[0].requested_delay, requested_delays.len()), (Some(secs(2)), 1));
    let durations: Vec<_> = attempts.iter().map(|attempt| attempt.ended.unwrap() - attempt.started).collect();
    assert_eq!(durations, [0, 0, 0, 1_000, 0, 30].map(millis));
    let text = report.to_string();
    let expected =
        "6 attempts (429@0ms, reset@0ms, connect_refused(not_sent)@0ms, timeout@1s, 529@0ms, 200@30ms)";
    assert!(text.contains(expected), "{text}");
    for (index, (attempt, seen)) in attempts.iter().zip(inner.seen()).enumerate() {
        assert_eq!(attempt.number, index as u32 + 1);
        assert_eq!(attempt.started, seen.at - start);
        assert_eq!(attempt.delay.is_some(), index < 5);
        assert_eq!(attempt.queued, Duration::ZERO);
    }
    assert_eq!(attempts[5].ended, Some(start.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn report_of_a_call_replaces_the_report_of_a_nested_call() {
    let service = tower::service_fn(|_: Request<ReplayBody<Content>>| async {
        let own_call = RetryLayer::new()
            .with_max_attempts(1)
            .unwrap()
            .layer(ScriptedService::new([Io(ConnectionReset)]));
        own_call.oneshot(get(URI)).await
    });
    let error = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().attempt_count(), 3);
}

/// Marks a response as the auth layer does after replacing the API key.
fn mark_key_replaced<B>(mut response: Response<B>) -> Response<B> {
    response.extensions_mut().insert(KeyReplaced);
    response
}

#[tokio::test(start_paused = true)]
async fn stacked_retry_layers_resend_a_request_only_once_after_a_401() {
    let single_attempt = || RetryLayer::new().with_max_attempts(1).unwrap();
    for with_request_id in [false, true] {
        // The script ends with a 200. A layer that resends after every 401 therefore fails the test instead of looping.
        let inner = ScriptedService::new([[Status(401); 9].as_slice(), &[Status(200)]].concat());
        let service = ServiceBuilder::new()
            .option_layer(with_request_id.then(RequestIdLayer::new))
            .layer(single_attempt())
            .map_response(mark_key_replaced)
            .layer(single_attempt())
            .layer(single_attempt())
            .map_response(mark_key_replaced)
            .service(inner.clone());
        let response = service.oneshot(request("POST", URI)).await.unwrap();
        let stop_reason = report(&response).stop_reason();
        assert_eq!((response.status().as_u16(), inner.calls(), stop_reason), (401, 2, Some(NotRetryable)));
    }
}

#[tokio::test(start_paused = true)]
async fn marker_of_a_replaced_key_has_an_effect_in_a_401_only() {
    for (status, calls) in [(401, 2), (403, 1), (200, 1)] {
        let inner = ScriptedService::new([Status(status), Status(200)]);
        let marked = ServiceBuilder::new().layer(RetryLayer::new()).map_response(mark_key_replaced);
        marked.service(inner.clone()).oneshot(get(URI)).await.unwrap();
        assert_eq!(inner.calls(), calls, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn outer_retry_layer_resends_after_401_if_inner_layer_may_not_retry() {
    let inner = ScriptedService::new([Status(401), Status(200)]);
    let without_retries = |mut request: Request<_>| {
        request.extensions_mut().insert(RetryOverride::new().without_retries());
        request
    };
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .map_request(without_retries)
        .layer(RetryLayer::new())
        .map_response(mark_key_replaced)
        .service(inner.clone());
    let response = service.oneshot(request("POST", URI)).await.unwrap();
    assert_eq!((response.status().as_u16(), inner.calls()), (200, 2));
}
