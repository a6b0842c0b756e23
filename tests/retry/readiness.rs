//! Tests calls to an inner service that is not ready yet, or whose `poll_ready` fails.

use std::{
    error::Error as _,
    io::{self, ErrorKind::*},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use http::{Request, Response, StatusCode};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    Body, Error,
    body::ReplayBody,
    call::{
        CallContext,
        Outcome::{self, *},
        StopReason::{self, *},
    },
    error::DeliveryError,
    limit::{LocalLimiter, RateLimitLayer},
    retry::RetryLayer,
};

use super::{
    URI, report,
    support::{
        Broken, Content,
        Scripted::{self, Io, Refused, Status},
        ScriptedService, broken, cause, get, millis, request,
    },
};

#[tokio::test(start_paused = true)]
async fn call_waits_until_the_service_is_ready_before_each_attempt() {
    let (mut service, mut handle) =
        tower_test::mock::spawn_layer::<Request<ReplayBody<Content>>, Response<Content>, _>(
            RetryLayer::new().with_seed(1),
        );
    handle.allow(0);
    assert!(service.poll_ready::<Request<Content>>().is_ready(), "the retry layer should always be ready");
    let mut call = task::spawn(service.call(get(URI)));
    assert_pending!(call.poll());
    assert!(handle.poll_request().is_pending(), "the layer should send no request before the mock is ready");
    handle.allow(1);
    assert!(call.is_woken());
    assert_pending!(call.poll());
    let (_, first) = handle.next_request().await.unwrap();
    first.send_response(Response::builder().status(503).body(Content::default()).unwrap());
    assert_pending!(call.poll());
    tokio::time::advance(millis(105)).await;
    assert_pending!(call.poll());
    handle.allow(1);
    assert_pending!(call.poll());
    let (second, response) = handle.next_request().await.unwrap();
    assert_eq!(second.extensions().get::<CallContext>().unwrap().attempt(), 2);
    // The layer does not replay a body that the service still holds.
    drop(second);
    response.send_error(io::Error::from(BrokenPipe));
    assert_pending!(call.poll());
    tokio::time::advance(millis(205)).await;
    handle.allow(1);
    assert_pending!(call.poll());
    let (_, third) = handle.next_request().await.unwrap();
    third.send_response(Response::new(Content::default()));
    assert_eq!(assert_ready_ok!(call.poll()).status(), 200);
}

/// A service that reads one script entry at each `poll_ready`. `Some` makes the service ready for a call with the
/// scripted result. `None` makes `poll_ready` fail. The layer must not poll a clone again after this failure.
struct ScriptedReadiness {
    script: Arc<[Option<Scripted>]>,
    polls: Arc<AtomicUsize>,
    next: Option<ScriptedService>,
    failed: bool,
}

impl ScriptedReadiness {
    fn new(script: &[Option<Scripted>]) -> Self {
        Self { script: script.into(), polls: Arc::default(), next: None, failed: false }
    }
}

impl Clone for ScriptedReadiness {
    fn clone(&self) -> Self {
        Self { script: Arc::clone(&self.script), polls: Arc::clone(&self.polls), next: None, failed: false }
    }
}

impl Service<Request<ReplayBody<Content>>> for ScriptedReadiness {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = <ScriptedService as Service<Request<ReplayBody<Content>>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        assert!(!self.failed, "the layer polled a service again whose `poll_ready` had failed");
        match self.script.get(self.polls.fetch_add(1, Relaxed)).copied().flatten() {
            Some(response) => {
                let inner = self.next.insert(ScriptedService::new([response]));
                Service::<Request<ReplayBody<Content>>>::poll_ready(inner, cx)
            }
            None => {
                self.failed = true;
                Poll::Ready(Err(Broken.into()))
            }
        }
    }

    fn call(&mut self, request: Request<ReplayBody<Content>>) -> Self::Future {
        self.next.take().expect("the layer called a service that was not ready").call(request)
    }
}

/// Makes a call. Returns the call's status or error, the outcome of each attempt and the stop reason.
async fn call(
    method: &str,
    script: &[Option<Scripted>],
) -> (Result<u16, Error>, Vec<Outcome>, Option<StopReason>) {
    let service = RetryLayer::new().layer(ScriptedReadiness::new(script));
    let (result, report) = match service.oneshot(request(method, URI)).await {
        Ok(response) => (Ok(response.status().as_u16()), report(&response).clone()),
        Err(error) => {
            let report = error.report().unwrap().clone();
            (Err(error), report)
        }
    };
    let outcomes = report.attempts().iter().filter_map(|attempt| attempt.outcome).collect();
    (result, outcomes, report.stop_reason())
}

#[tokio::test(start_paused = true)]
async fn call_returns_the_error_of_the_last_attempt_if_poll_ready_then_fails() {
    let (result, outcomes, stop_reason) = call("GET", &[Some(Io(ConnectionReset)), None]).await;
    let error = result.unwrap_err();
    let source = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
    assert_eq!(source.kind(), ConnectionReset);
    assert_eq!((outcomes.as_slice(), stop_reason), (&[Failed, NotSent, NotSent][..], Some(Exhausted)));

    // If two attempts failed, the call returns the error of the second attempt.
    let script = [Some(Io(ConnectionReset)), Some(Io(BrokenPipe)), None];
    let (result, outcomes, _) = call("GET", &script).await;
    assert_eq!(cause::<io::Error>(&result.unwrap_err()).unwrap().kind(), BrokenPipe);
    assert_eq!(outcomes, [Failed, Failed, NotSent]);
}

#[tokio::test(start_paused = true)]
async fn retry_layer_retries_post_until_an_attempt_may_have_been_sent() {
    let (result, outcomes, stop_reason) = call("POST", &[Some(Refused), None]).await;
    assert_eq!(cause::<io::Error>(&result.unwrap_err()).unwrap().kind(), ConnectionRefused);
    assert_eq!((outcomes.as_slice(), stop_reason), (&[NotSent, NotSent, NotSent][..], Some(Exhausted)));

    let (result, outcomes, stop_reason) = call("POST", &[None, Some(Io(ConnectionReset))]).await;
    assert_eq!(cause::<io::Error>(&result.unwrap_err()).unwrap().kind(), ConnectionReset);
    assert_eq!((outcomes.as_slice(), stop_reason), (&[NotSent, Failed][..], Some(NotIdempotent)));
}

#[tokio::test(start_paused = true)]
async fn retry_layer_sends_the_request_when_the_service_becomes_ready() {
    let ok = StatusCode::OK;
    for method in ["PUT", "POST"] {
        let (result, outcomes, stop_reason) = call(method, &[None, None, Some(Status(200))]).await;
        assert_eq!(result.unwrap(), 200);
        assert_eq!(
            (outcomes.as_slice(), stop_reason),
            (&[NotSent, NotSent, Outcome::Response(ok)][..], Some(Success))
        );
    }
    let (result, outcomes, _) = call("PUT", &[Some(Io(ConnectionReset)), None, Some(Status(200))]).await;
    assert_eq!(result.unwrap(), 200);
    assert_eq!(outcomes, [Failed, NotSent, Outcome::Response(ok)]);
}

#[tokio::test(start_paused = true)]
async fn call_returns_the_readiness_error_if_no_attempt_was_sent() {
    let service = RetryLayer::new().with_max_attempts(1).unwrap().layer(ScriptedReadiness::new(&[]));
    let error = service.oneshot(request("GET", URI)).await.unwrap_err();
    assert_eq!(error.source().unwrap().downcast_ref(), Some(&Broken));
    let report = error.report().unwrap();
    assert_eq!((report.attempt_count(), report.stop_reason()), (1, Some(Exhausted)));
    assert_eq!(report.attempts()[0].outcome, Some(NotSent));
}

#[tokio::test(start_paused = true)]
async fn call_returns_the_readiness_error_after_a_503_response() {
    let (result, outcomes, _) = call("GET", &[Some(Status(503)), None]).await;
    assert_eq!(cause(&result.unwrap_err()), Some(&Broken));
    assert_eq!(outcomes, [Outcome::Response(StatusCode::SERVICE_UNAVAILABLE), NotSent, NotSent]);
}

#[tokio::test(start_paused = true)]
async fn retry_layer_retries_put_and_post_with_a_body_if_readiness_fails() {
    for method in ["PUT", "POST"] {
        let error = RetryLayer::new().layer(broken()).oneshot(request(method, URI)).await.unwrap_err();
        assert_eq!(cause(&error), Some(&Broken));
        let report = error.report().unwrap();
        assert_eq!((report.stop_reason(), report.attempt_count()), (Some(Exhausted), 3), "{method}");
        assert!(report.attempts().iter().all(|attempt| attempt.outcome == Some(Outcome::NotSent)));
    }
}

/// A service that becomes ready `times` times. Every later `poll_ready` fails.
#[derive(Clone)]
struct ReadyTimes {
    times: usize,
    polls: Arc<AtomicUsize>,
    inner: ScriptedService,
}

impl Service<Request<ReplayBody<Content>>> for ReadyTimes {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = <ScriptedService as Service<Request<ReplayBody<Content>>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.polls.fetch_add(1, Relaxed) >= self.times {
            return Poll::Ready(Err(Broken.into()));
        }
        Service::<Request<ReplayBody<Content>>>::poll_ready(&mut self.inner, cx)
    }

    fn call(&mut self, request: Request<ReplayBody<Content>>) -> Self::Future {
        self.inner.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_error_of_a_rate_limited_service_does_not_replace_an_attempt_error() {
    let service =
        ReadyTimes { times: 1, polls: Arc::default(), inner: ScriptedService::new([Io(ConnectionReset)]) };
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(LocalLimiter::without_quota()))
        .service(service);
    let error = service.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(cause::<io::Error>(&error).map(io::Error::kind), Some(ConnectionReset), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn retry_layer_retries_post_if_a_rate_limited_service_is_not_ready() {
    let service = ReadyTimes { times: 0, polls: Arc::default(), inner: ScriptedService::new([Status(200)]) };
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(LocalLimiter::without_quota()))
        .service(service);
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert_eq!(error.report().unwrap().attempt_count(), 3, "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn call_returns_the_readiness_error_after_an_error_and_a_503_response() {
    let service = ReadyTimes {
        times: 2,
        polls: Arc::default(),
        inner: ScriptedService::new([Io(ConnectionReset), Status(503)]),
    };
    let error = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap_err();
    assert_eq!(cause(&error), Some(&Broken), "{error:?}");
}

/// A breaker may reject in `poll_ready`. The request has its permit then.
#[tokio::test(start_paused = true)]
async fn open_circuit_in_poll_ready_below_the_limiter_ends_the_call() {
    #[derive(Clone, Default)]
    struct Open(Arc<AtomicUsize>);

    impl Service<Request<ReplayBody<Content>>> for Open {
        type Response = Response<Content>;
        type Error = BoxError;
        type Future = std::future::Pending<Result<Response<Content>, BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            self.0.fetch_add(1, Relaxed);
            Poll::Ready(Err(DeliveryError::circuit_open("too many failures").into()))
        }

        fn call(&mut self, _: Request<ReplayBody<Content>>) -> Self::Future {
            unreachable!("the service is not ready")
        }
    }

    let open = Open::default();
    let limiter = LocalLimiter::without_quota();
    let service = RetryLayer::new().layer(RateLimitLayer::new(limiter).layer(open.clone()));
    let error = service.oneshot(request("GET", URI)).await.unwrap_err();
    assert_eq!((error.kind(), open.0.load(Relaxed)), (tower_outbound::ErrorKind::CircuitOpen, 1));
    assert!(!error.may_have_been_processed());
}
