//! Tests that a request is resent after a 401 if the auth layer has replaced the API key.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    body::ReplayBody,
    call::{KeyReplaced, StopReason},
    request_id::RequestIdLayer,
    retry::{RetryLayer, RetryOverride},
    timeout::TotalTimeoutLayer,
};

use super::{
    URI, report,
    support::{Content, Scripted::Status, ScriptedService, get, millis, request, secs},
};

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
        assert_eq!(
            (response.status().as_u16(), inner.calls()),
            (401, 2),
            "with a request id layer: {with_request_id}"
        );
        assert_eq!(report(&response).stop_reason(), Some(StopReason::NotRetryable));
    }
}

/// A resend with a new API key does not count as one of the three attempts, so the layer sends four requests.
#[tokio::test(start_paused = true)]
async fn custom_rule_can_retry_a_401_after_the_resend_with_a_new_key() {
    let inner = ScriptedService::new([[Status(401); 9].as_slice(), &[Status(200)]].concat());
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().retry_on([StatusCode::UNAUTHORIZED]).with_max_attempts(3).unwrap())
        .map_response(mark_key_replaced)
        .service(inner.clone());
    let response = service.oneshot(get(URI)).await.unwrap();
    assert_eq!((inner.calls(), report(&response).stop_reason()), (1 + 3, Some(StopReason::Exhausted)));
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

/// An empty body that has already ended, ends after a delay, or never ends.
enum EmptyBody {
    Ended,
    EndsAfter(Pin<Box<tokio::time::Sleep>>),
    NeverEnds,
}

impl EmptyBody {
    fn ending_after(length: Option<Duration>) -> Self {
        match length {
            Some(Duration::ZERO) => Self::Ended,
            Some(length) => Self::EndsAfter(Box::pin(tokio::time::sleep(length))),
            None => Self::NeverEnds,
        }
    }
}

impl Body for EmptyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Ended => Poll::Ready(None),
            Self::EndsAfter(timer) => timer.as_mut().poll(cx).map(|()| None),
            Self::NeverEnds => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Ended)
    }
}

/// Returns a service that responds 401 to the first request after `delay`, and 200 to later requests. The body of the
/// 401 ends after the time `body_length`, or never if `body_length` is `None`.
fn responds_401_once(
    delay: Duration,
    body_length: Option<Duration>,
    calls: &Arc<AtomicUsize>,
) -> impl Service<Request<ReplayBody<Content>>, Response = Response<EmptyBody>, Error = Infallible, Future: Send>
+ Clone {
    let calls = Arc::clone(calls);
    service_fn(move |_: Request<ReplayBody<Content>>| {
        let first = calls.fetch_add(1, Relaxed) == 0;
        async move {
            if !first {
                return Ok(Response::new(EmptyBody::Ended));
            }
            tokio::time::sleep(delay).await;
            let mut response = mark_key_replaced(Response::new(EmptyBody::ending_after(body_length)));
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            Ok(response)
        }
    })
}

#[tokio::test(start_paused = true)]
async fn retry_layer_returns_a_401_if_its_body_is_not_drained_by_the_deadline() {
    for (delay, body_length, expected) in [
        (950, None, 401),
        (950, Some(millis(5)), 401),
        (905, None, 401),
        (890, None, 200),
        (890, Some(millis(5)), 200),
        // A body that has already ended need not be drained.
        (950, Some(Duration::ZERO), 200),
    ] {
        let (calls, start) = (Arc::default(), Instant::now());
        let service = (TotalTimeoutLayer::new(secs(1)).unwrap(), RetryLayer::new()).layer(responds_401_once(
            millis(delay),
            body_length,
            &calls,
        ));
        let case = format!("the 401 arrives after {delay} ms and its body ends after {body_length:?}");
        let response = service.oneshot(get(URI)).await.expect(&case);
        assert_eq!(
            (response.status().as_u16(), calls.load(Relaxed)),
            (expected, 1 + usize::from(expected == 200)),
            "{case}"
        );
        if expected == 401 {
            assert!(
                (0..=1).contains(&(start.elapsed().as_millis() - u128::from(delay))),
                "the layer should return the 401 immediately: {case}"
            );
            assert_eq!(report(&response).stop_reason(), Some(StopReason::Deadline));
            assert_eq!(report(&response).retry_after(), Some(millis(100)));
        }
    }
}
