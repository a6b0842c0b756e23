//! Sends one call, from `poll_ready` to the end of the response body.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower::{Service, ServiceExt, util::BoxCloneService};
use tower_outbound::{Body, BoxError, Report, call::AttemptReport};

use super::{
    faulty_service::{FaultPlan, FaultyService, PanicPoint},
    slow_body::SlowBody,
};

/// A layer's service with an erased type. The wrappers that erase the type have no state, so they cannot hide a defect
/// of the layer.
pub(crate) type BoxedService = BoxCloneService<Request<Body>, Response<Body>, BoxError>;

/// Converts response bodies to [`Body`] and errors to [`BoxError`].
#[derive(Clone)]
pub(crate) struct BoxBodies<S>(pub(crate) S);

impl<S, R> Service<Request<Body>> for BoxBodies<S>
where
    S: Service<Request<Body>, Response = Response<R>, Error: Into<BoxError>>,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxBodiesFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        BoxBodiesFuture { future: self.0.call(request) }
    }
}

pin_project! {
    pub(crate) struct BoxBodiesFuture<F> {
        #[pin]
        future: F,
    }
}

impl<F, R, E> Future for BoxBodiesFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    E: Into<BoxError>,
{
    type Output = Result<Response<Body>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.project().future.poll(cx)) {
            Ok(response) => Ok(response.map(Body::new)),
            Err(error) => Err(error.into()),
        })
    }
}

/// Builds a request with the task number and the script for [`FaultyService`] in its headers.
pub(crate) fn request(plan: &Arc<FaultPlan>, uri: &str, task: usize, responses: &str) -> Request<Body> {
    Request::get(uri)
        .header("x-task", task)
        .header("x-responses", responses)
        .body(SlowBody::body(plan, PanicPoint::RequestBody))
        .unwrap()
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallRecord {
    pub(crate) status: u16,
    /// The time from the start of the test to the end of the response body.
    pub(crate) completed: Duration,
    pub(crate) attempts: Vec<AttemptReport>,
}

pub(crate) async fn send(
    mut service: BoxedService,
    request: Request<Body>,
    start: Instant,
) -> Result<CallRecord, BoxError> {
    let response = service.ready().await?.call(request).await?;
    let attempts = Report::from_response(&response).map(Report::attempts).unwrap_or_default();
    let status = response.status().as_u16();
    assert_eq!(BodyExt::collect(response.into_body()).await?.to_bytes(), "hello");
    Ok(CallRecord { status, completed: start.elapsed(), attempts })
}

/// Asserts that a call through a clone of the service succeeds.
pub(crate) async fn assert_usable(service: &BoxedService, inner: &FaultyService, uri: &str) {
    let request = request(&inner.plan, uri, 99, "200:5");
    let call = tokio::time::timeout(Duration::from_secs(120), send(service.clone(), request, Instant::now()));
    assert_eq!(call.await.expect("the call through a clone hangs").unwrap().status, 200);
}
