//! Tests calls whose attempts the server has rejected, such as with a 429.

use http::StatusCode;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_outbound::{
    call::{Delivery, Outcome, StopReason},
    retry::{RetryLayer, RetryOverride, RetryRejected},
    timeout::AttemptTimeoutLayer,
};

use super::{
    URI, report,
    support::{Scripted, Scripted::*, ScriptedService, millis, request},
};

/// Calls two retry layers, of which only the inner one knows that the POST is idempotent and makes two attempts for each
/// attempt of the outer one. Returns the number of requests.
async fn requests_through_two_layers(responses: &[Scripted]) -> usize {
    let inner = ScriptedService::new(responses.iter().copied());
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RetryLayer::new().with_idempotent(|_| true).with_max_attempts(2).unwrap())
        .layer(AttemptTimeoutLayer::new(millis(90)).unwrap())
        .service(inner.clone());
    let _ = service.oneshot(request("POST", URI)).await;
    inner.calls()
}

#[tokio::test(start_paused = true)]
async fn post_is_sent_again_only_if_no_attempt_of_an_inner_layer_may_have_been_processed() {
    let cases: [(&[Scripted], usize); 7] = [
        (&[Status(429), Status(429), Status(200)], 3),
        (&[Refused, Status(429), Status(200)], 3),
        (&[Status(429), Refused, Status(200)], 3),
        // The inner layer returns the response or error of its second attempt. The server may have processed the first.
        (&[NoResponse, Status(429), Status(200)], 2),
        (&[Status(503), Status(429), Status(200)], 2),
        (&[NoResponse, Refused, Status(200)], 2),
        (&[Status(503), Refused, Status(200)], 2),
    ];
    for (responses, expected) in cases {
        assert_eq!(requests_through_two_layers(responses).await, expected, "{responses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn report_shows_the_delivery_of_each_attempt() {
    let inner = ScriptedService::new([Status(429), Refused, Status(529), NoResponse, Status(200)]);
    let layer = RetryLayer::new().with_max_attempts(9).unwrap();
    let service = layer.layer(AttemptTimeoutLayer::new(millis(90)).unwrap().layer(inner));
    let response = service.oneshot(request("PUT", URI)).await.unwrap();
    let outcomes: Vec<_> =
        report(&response).attempts().iter().filter_map(|attempt| attempt.outcome).collect();
    let deliveries: Vec<_> = outcomes.iter().map(|outcome| outcome.delivery()).collect();
    use Delivery::*;
    assert_eq!(deliveries, [Rejected, NotSent, Rejected, MaybeProcessed, Processed]);
    assert_eq!(outcomes[0], Outcome::Rejected(StatusCode::TOO_MANY_REQUESTS));
    let text = report(&response).to_string();
    let expected = "5 attempts (429@0ms, connect_refused(not_sent)@0ms, 529@0ms, timeout@90ms, 200@0ms)";
    assert!(text.contains(expected), "{text}");
}

/// The request is idempotent, so the attempt that timed out is retried. Afterwards, a 429 does not prove that the call
/// was not processed.
#[tokio::test(start_paused = true)]
async fn idempotent_call_is_retried_after_a_timeout_and_a_429() {
    for requests in [RetryRejected::AnyMethod, RetryRejected::Idempotent] {
        let inner = ScriptedService::new([NoResponse, RetryAfter(429, "1"), Status(200)]);
        let layer = RetryLayer::new().with_retry_rejected(requests);
        let service = layer.layer(AttemptTimeoutLayer::new(millis(90)).unwrap().layer(inner.clone()));
        let mut request = request("POST", URI);
        request.extensions_mut().insert(RetryOverride::new().with_idempotent());
        let response = service.oneshot(request).await.unwrap();
        assert_eq!((response.status().as_u16(), inner.calls()), (200, 3));
        assert_eq!(report(&response).stop_reason(), Some(StopReason::Success));
        let seen = inner.seen();
        assert!(seen[2].at - seen[1].at >= millis(1_000));
    }
}
