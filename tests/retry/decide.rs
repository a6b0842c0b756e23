//! Tests that `RetryLayer::decide` returns the decision that the layer makes in a call.

use std::io;

use http::HeaderName;
use tower_outbound::{
    BoxError,
    limit::{Dialect, ServerSignal},
    retry::NextStep,
};

use super::*;

/// The delay of the next attempt and its reason, or the reason to stop.
type Step = Result<(Duration, DelayReason), StopReason>;

fn request(method: &str, path: &str) -> Request<Content> {
    support::request(method, &format!("{URI}{path}"))
}

/// Responds with a status and a header, or fails with an I/O error if the status is 0. After a 401,
/// another key is available.
fn respond(status: u16, (name, value): (&'static str, &'static str)) -> Result<Response<Content>, BoxError> {
    let Ok(status) = StatusCode::from_u16(status) else {
        return Err(io::Error::from(ConnectionReset).into());
    };
    let mut response = Response::new(Content::default());
    *response.status_mut() = status;
    *response.headers_mut() =
        HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
    if status == StatusCode::UNAUTHORIZED {
        response.extensions_mut().insert(KeyReplaced);
    }
    Ok(response)
}

fn decided(
    layer: &RetryLayer,
    request: &Request<Content>,
    result: Result<Response<Content>, BoxError>,
) -> Step {
    let state = match result {
        Ok(response) => layer.after_response(request, &response),
        Err(error) => layer.after_error(request, error),
    };
    match layer.decide(&state) {
        NextStep::Retry { delay, reason, .. } => Ok((delay, reason)),
        NextStep::Stop { reason, .. } => Err(reason),
        _ => unreachable!("a step that the test does not know"),
    }
}

/// Calls a service whose first attempt ends with this result, and whose later attempts succeed.
async fn in_call(
    layer: &RetryLayer,
    request: Request<Content>,
    result: impl Fn() -> Result<Response<Content>, BoxError>,
) -> Step {
    let service = layer.layer(service_fn(|request: Request<ReplayBody<Content>>| {
        let is_first = request.extensions().get::<CallContext>().unwrap().attempt() == 1;
        std::future::ready(if is_first { result() } else { Ok(Response::new(Content::default())) })
    }));
    let report = match service.oneshot(request).await {
        Ok(response) => report(&response).clone(),
        Err(error) => error.report().unwrap().clone(),
    };
    match &report.attempts()[..] {
        [_] => Err(report.stop_reason().unwrap()),
        // A custom backoff adds a random part of itself to a requested delay.
        [first, ..] if first.delay_reason == Some(DelayReason::Requested) => {
            Ok((secs(first.delay.unwrap().as_secs()), DelayReason::Requested))
        }
        [first, ..] => Ok((first.delay.unwrap(), first.delay_reason.unwrap())),
        [] => unreachable!("every call has an attempt"),
    }
}

#[tokio::test(start_paused = true)]
async fn decision_without_a_call_equals_that_of_a_call() {
    let backoff = |base| ExponentialBackoff::new(base, secs(20)).unwrap().with_jitter(Jitter::none());
    let budget = Budget::new().with_capacity(14).unwrap();
    let layer = RetryLayer::new().with_backoff(backoff(millis(100))).with_throttled_backoff(backoff(secs(1)));
    let layers = [
        layer.clone(),
        layer.clone().with_max_attempts(1).unwrap().retry_on([StatusCode::CONFLICT]),
        layer
            .clone()
            .with_idempotent(|head| head.uri.path() == "/v1/searches")
            .never_on([StatusCode::BAD_GATEWAY]),
        layer.clone().with_honoured_idempotency_key(IdempotencyKey::bare()).with_budget(budget),
        layer.clone().with_retry_rejected(RetryRejected::Idempotent).with_max_retry_after(secs(3)),
        layer.with_custom_backoff(|| [millis(7)].into_iter()).with_custom_throttled_backoff(std::iter::empty),
    ];
    // Spends the credit of the only retry.
    let failing =
        service_fn(|_: Request<ReplayBody<Content>>| std::future::ready(respond(500, ("x-a", "b"))));
    layers[3].layer(failing).oneshot(request("GET", "")).await.unwrap();
    let mut steps = Vec::new();
    for layer in &layers {
        for (method, path) in [("GET", ""), ("POST", ""), ("POST", "/searches")] {
            for status in [0, 101, 200, 401, 404, 408, 409, 429, 500, 502, 529] {
                for header in
                    [("x-a", "b"), ("retry-after", "7"), ("retry-after", "121"), ("x-should-retry", "true")]
                {
                    for own in [None, Some(RetryOverride::new().without_retries())] {
                        let mut request = request(method, path);
                        own.map(|own| request.extensions_mut().insert(own));
                        let decided = decided(layer, &request, respond(status, header));
                        let case = format!("{layer:?} {method} {path} {status} {header:?} {own:?}");
                        let in_call = in_call(layer, request, || respond(status, header)).await;
                        assert_eq!(decided, in_call, "{case}");
                        steps.push(decided);
                    }
                }
            }
        }
    }
    for step in [
        Ok((millis(100), DelayReason::Transient)),
        Ok((millis(7), DelayReason::Transient)),
        Ok((secs(1), DelayReason::Throttled)),
        Ok((secs(7), DelayReason::Requested)),
        Ok((Duration::ZERO, DelayReason::KeyReplaced)),
        Err(StopReason::Success),
        Err(StopReason::NotRetryable),
        Err(StopReason::NotIdempotent),
        Err(StopReason::Exhausted),
        Err(StopReason::RequestedDelayTooLong),
        Err(StopReason::Budget),
    ] {
        assert!(steps.contains(&step), "no case has {step:?}");
    }
}

#[test]
fn permanent_grpc_error_is_not_retried() {
    let layer = RetryLayer::new().with_classify(Grpc::new());
    let mut response = respond(200, ("grpc-status", "8")).unwrap();
    let decide = |response: &Response<_>| layer.decide(&layer.after_response(&request("GET", ""), response));
    assert!(matches!(decide(&response), NextStep::Retry { reason: DelayReason::Throttled, .. }));
    response.extensions_mut().insert(ServerSignal::throttled().with_permanent());
    assert!(matches!(decide(&response), NextStep::Stop { reason: StopReason::NotRetryable, .. }));
}

#[test]
fn changed_state_shows_the_decision_after_a_later_attempt() {
    let layer = RetryLayer::new();
    let mut state = layer.after_response(&request("GET", ""), &respond(503, ("x-a", "b")).unwrap());
    state.attempts = 2;
    assert!(matches!(layer.decide(&state), NextStep::Retry { delay, .. } if delay == millis(200)));
    state.time_left = Some(millis(200));
    assert!(matches!(
        layer.decide(&state),
        NextStep::Stop { reason: StopReason::Deadline, retry_after: Some(_), .. }
    ));
    state.time_left = None;
    state.replayable = false;
    assert!(matches!(layer.decide(&state), NextStep::Stop { reason: StopReason::NotReplayable, .. }));
}

#[test]
fn signal_or_http_status_throttles_a_grpc_call() {
    let dialect = Dialect::new().with_throttle_status(StatusCode::BAD_REQUEST).unwrap();
    let layer = RetryLayer::new().with_classify(Grpc::new()).with_dialect(dialect);
    let throttled = Some(ServerSignal::throttled());
    let (retry, stop) = (Ok(DelayReason::Throttled), Err(StopReason::NotRetryable));
    for (status, headers, signal, expected) in [
        (200, &[("grpc-status", "2")][..], throttled, retry),
        (
            200,
            &[("grpc-status", "2")],
            throttled.map(|signal| signal.with_delay(secs(3))),
            Ok(DelayReason::Requested),
        ),
        (200, &[("grpc-status", "2"), ("grpc-retry-pushback-ms", "-1")], throttled, stop),
        (200, &[("grpc-status", "2")], None, stop),
        // The retry layer classifies an accepted response by its status.
        (200, &[("grpc-status", "8")], Some(ServerSignal::accepted()), retry),
        (529, &[], None, retry),
        (529, &[("grpc-status", "2")], None, stop),
        (400, &[], None, retry),
        (401, &[], None, stop),
    ] {
        let mut response = respond(status, ("x-a", "b")).unwrap();
        response.extensions_mut().remove::<KeyReplaced>();
        let fields = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        response.headers_mut().extend(fields);
        signal.map(|signal| response.extensions_mut().insert(signal));
        let decided = decided(&layer, &request("GET", ""), Ok(response)).map(|(_, reason)| reason);
        assert_eq!(decided, expected, "{status} {headers:?} {signal:?}");
    }
}
