//! One call from its readiness to the end of its answer's body, and what is told of it.

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
    moody::{Moody, Place, Plan},
    slow::Slow,
};

/// A layer's service, whatever its type. Nothing that has a state of its own stands around it.
pub(crate) type Client = BoxCloneService<Request<Body>, Response<Body>, BoxError>;

#[derive(Clone)]
pub(crate) struct Erased<S>(pub(crate) S);

impl<S, R> Service<Request<Body>> for Erased<S>
where
    S: Service<Request<Body>, Response = Response<R>, Error: Into<BoxError>>,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = ErasedFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        ErasedFuture { future: self.0.call(request) }
    }
}

pin_project! {
    pub(crate) struct ErasedFuture<F> {
        #[pin]
        future: F,
    }
}

impl<F, R, E> Future for ErasedFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    E: Into<BoxError>,
{
    type Output = Result<Response<Body>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.project().future.poll(cx)) {
            Ok(answer) => Ok(answer.map(Body::new)),
            Err(error) => Err(error.into()),
        })
    }
}

/// By `task`; `answers` as [`Moody`] reads them.
pub(crate) fn request(plan: &Arc<Plan>, uri: &str, task: usize, answers: &str) -> Request<Body> {
    Request::get(uri)
        .header("x-task", task)
        .header("x-answers", answers)
        .body(Slow::body(plan, Place::Request))
        .unwrap()
}

/// How a call went, by times since the start of all.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) at: Duration,
    pub(crate) attempts: Vec<AttemptReport>,
}

pub(crate) async fn sent(client: Client, request: Request<Body>, start: Instant) -> Result<Told, BoxError> {
    let mut client = client;
    let answer = client.ready().await?.call(request).await?;
    let attempts = Report::from_response(&answer).map(Report::attempts).unwrap_or_default();
    let status = answer.status().as_u16();
    assert_eq!(BodyExt::collect(answer.into_body()).await?.to_bytes(), "hello");
    Ok(Told { status, at: start.elapsed(), attempts })
}

/// A service that came through is as good as new: a call through a clone is answered.
pub(crate) async fn still_works(client: &Client, moody: &Moody, uri: &str) {
    let request = request(&moody.plan, uri, 99, "200:5");
    let answer =
        tokio::time::timeout(Duration::from_secs(120), sent(client.clone(), request, Instant::now()));
    assert_eq!(answer.await.expect("a later call hangs").unwrap().status, 200);
}
