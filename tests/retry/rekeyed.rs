//! A 401 whose key is replaced: the request is resent once per call, and the 401 is not lost if there is no time.

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
    timeout::TimeoutLayer,
};

use super::{
    URI, report,
    support::{Content, Scripted::Status, ScriptedService, get, millis, request, secs},
};

fn mark<B>(mut response: Response<B>) -> Response<B> {
    response.extensions_mut().insert(KeyReplaced);
    response
}

#[tokio::test(start_paused = true)]
async fn stacked_retry_layers_resend_once() {
    let one = || RetryLayer::new().with_max_attempts(1).unwrap();
    for (called_by, outermost) in [("the caller", false), ("a layer that begins the call", true)] {
        // The last response is a 200, so that a failing test ends.
        let probe = ScriptedService::new([[Status(401); 9].as_slice(), &[Status(200)]].concat());
        let service = ServiceBuilder::new()
            .option_layer(outermost.then(RequestIdLayer::new))
            .layer(one())
            .map_response(mark)
            .layer(one())
            .layer(one())
            .map_response(mark)
            .service(probe.clone());
        let response = service.oneshot(request("POST", URI)).await.unwrap();
        assert_eq!((response.status().as_u16(), probe.calls()), (401, 2), "{called_by}");
        assert_eq!(report(&response).stop_reason(), Some(StopReason::NotRetryable));
    }
}

/// The second 401 is classified as any other response.
#[tokio::test(start_paused = true)]
async fn a_rule_that_retries_401s_uses_all_attempts() {
    let probe = ScriptedService::new([[Status(401); 9].as_slice(), &[Status(200)]].concat());
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new().retry_on(StatusCode::UNAUTHORIZED).with_max_attempts(3).unwrap())
        .map_response(mark)
        .service(probe.clone());
    let response = service.oneshot(get(URI)).await.unwrap();
    assert_eq!((probe.calls(), report(&response).stop_reason()), (1 + 3, Some(StopReason::Exhausted)));
}

/// An outer layer resends the request if the inner one may not.
#[tokio::test(start_paused = true)]
async fn an_outer_layer_resends_if_the_inner_layer_may_not() {
    let probe = ScriptedService::new([Status(401), Status(200)]);
    let never = |mut request: Request<_>| {
        request.extensions_mut().insert(RetryOverride::new().without_retries());
        request
    };
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .map_request(never)
        .layer(RetryLayer::new())
        .map_response(mark)
        .service(probe.clone());
    let response = service.oneshot(request("POST", URI)).await.unwrap();
    assert_eq!((response.status().as_u16(), probe.calls()), (200, 2));
}

/// The rest of a response's body: it is over, takes some time, or never ends.
enum Rest {
    Over,
    Takes(Pin<Box<tokio::time::Sleep>>),
    Endless,
}

impl Rest {
    fn of(length: Option<Duration>) -> Self {
        match length {
            Some(Duration::ZERO) => Self::Over,
            Some(length) => Self::Takes(Box::pin(tokio::time::sleep(length))),
            None => Self::Endless,
        }
    }
}

impl Body for Rest {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Over => Poll::Ready(None),
            Self::Takes(timer) => timer.as_mut().poll(cx).map(|()| None),
            Self::Endless => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Over)
    }
}

/// Responds 401 to the first request after `after`, with this rest of the body, and 200 to the second.
fn refusing(
    after: Duration,
    rest: Option<Duration>,
    calls: &Arc<AtomicUsize>,
) -> impl Service<Request<ReplayBody<Content>>, Response = Response<Rest>, Error = Infallible, Future: Send> + Clone
{
    let calls = Arc::clone(calls);
    service_fn(move |_: Request<ReplayBody<Content>>| {
        let first = calls.fetch_add(1, Relaxed) == 0;
        async move {
            if !first {
                return Ok(Response::new(Rest::Over));
            }
            tokio::time::sleep(after).await;
            let mut response = mark(Response::new(Rest::of(rest)));
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            Ok(response)
        }
    })
}

#[tokio::test(start_paused = true)]
async fn returns_a_401_that_cannot_be_drained_before_the_deadline() {
    for (after, rest, expected) in [
        (950, None, 401),
        (950, Some(millis(5)), 401),
        (905, None, 401),
        (890, None, 200),
        (890, Some(millis(5)), 200),
        // The body has no rest to drain.
        (950, Some(Duration::ZERO), 200),
    ] {
        let (calls, start) = (Arc::default(), Instant::now());
        let service = (TimeoutLayer::total(secs(1)).unwrap(), RetryLayer::new()).layer(refusing(
            millis(after),
            rest,
            &calls,
        ));
        let case = format!("{after} ms, {rest:?}");
        let response = service.oneshot(get(URI)).await.expect(&case);
        assert_eq!(
            (response.status().as_u16(), calls.load(Relaxed)),
            (expected, 1 + usize::from(expected == 200)),
            "{case}"
        );
        if expected == 401 {
            assert!((0..=1).contains(&(start.elapsed().as_millis() - u128::from(after))), "at once: {case}");
            assert_eq!(report(&response).stop_reason(), Some(StopReason::Deadline));
            assert_eq!(report(&response).retry_after(), Some(millis(100)));
        }
    }
}
