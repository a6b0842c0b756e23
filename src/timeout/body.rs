//! The idle timeout of a response body.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::Response;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::total::checked_limit;
use crate::{
    body::IdleBody,
    call::{CallContext, Report},
    config::InvalidConfig,
    error::polled_after_completion,
};

/// Ends a response body with an error if the body stalls. [`Error::is_timeout`](crate::Error::is_timeout) returns
/// `true` for this error.
///
/// The timer runs while the reader waits for a frame, and restarts with each frame. It does not run while the reader is
/// not polling the body. A slow body that never stalls may take any time and have any size:
/// [`Body::bytes_up_to`](crate::Body::bytes_up_to) limits the size.
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use bytes::Bytes;
/// use futures_util::stream;
/// use http_body::Frame;
/// use http_body_util::{BodyExt, StreamBody};
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_outbound::{Error, timeout::BodyIdleTimeoutLayer};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let service = ServiceBuilder::new()
///     .layer(BodyIdleTimeoutLayer::new(Duration::from_secs(30))?)
///     .service_fn(|_: http::Request<()>| async {
///         let silent = stream::pending::<Result<Frame<Bytes>, Infallible>>();
///         Ok::<_, Infallible>(http::Response::new(StreamBody::new(silent)))
///     });
///
/// let response = service.oneshot(http::Request::new(())).await?;
/// let error = response.into_body().collect().await.unwrap_err();
/// assert!(error.downcast_ref::<Error>().is_some_and(Error::is_timeout));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct BodyIdleTimeoutLayer {
    limit: Option<Duration>,
}

impl BodyIdleTimeoutLayer {
    /// Creates a layer that lets the reader wait at most `limit` for each frame.
    ///
    /// # Errors
    ///
    /// Returns an error if `limit` is zero.
    pub fn new(limit: Duration) -> Result<Self, InvalidConfig> {
        Ok(Self { limit: Some(checked_limit("body idle timeout", limit)?) })
    }

    /// Creates a layer without a limit. Use it if the stack must have the same type with and without a limit.
    pub const fn none() -> Self {
        Self { limit: None }
    }
}

impl<S> Layer<S> for BodyIdleTimeoutLayer {
    type Service = BodyIdleTimeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        BodyIdleTimeout { inner, limit: self.limit }
    }
}

/// The service of [`BodyIdleTimeoutLayer`].
///
/// # Errors
///
/// Returns the inner service's error. If the response body stalls, the body itself returns an error: see [`IdleBody`].
#[derive(Debug, Clone)]
pub struct BodyIdleTimeout<S> {
    inner: S,
    limit: Option<Duration>,
}

impl<S> BodyIdleTimeout<S> {
    inner_service!();
}

impl<S, T, R> Service<T> for BodyIdleTimeout<S>
where
    S: Service<T, Response = Response<R>>,
{
    type Response = Response<IdleBody<R>>;
    type Error = S::Error;
    type Future = BodyIdleFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: T) -> Self::Future {
        BodyIdleFuture { future: Some(self.inner.call(request)), limit: self.limit }
    }
}

pin_project! {
    /// The future of [`BodyIdleTimeout`].
    #[derive(Debug)]
    pub struct BodyIdleFuture<F> {
        // `None` after completion.
        #[pin]
        future: Option<F>,
        limit: Option<Duration>,
    }
}

impl<F, R, E> Future for BodyIdleFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<IdleBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else { polled_after_completion() };
        let result = ready!(future.poll(cx));
        this.future.set(None);
        Poll::Ready(result.map(|response| {
            let report = this.limit.and_then(|_| Report::from_response(&response));
            let call = report.map(CallContext::reported_by);
            response.map(|body| IdleBody::new(body, *this.limit).with_call(call))
        }))
    }
}
