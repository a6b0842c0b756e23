//! Creates a span for each attempt, as OpenTelemetry specifies for HTTP clients. Can also send the number of the
//! attempt and the span's context to the server.
//!
//! ```
//! use http::HeaderName;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_outbound::{attempt_span::AttemptSpanLayer, request_id::RequestIdLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let service = ServiceBuilder::new()
//!     .layer(RequestIdLayer::new())
//!     // … retry and limit …
//!     .layer(AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt")))
//!     .service_fn(|request: http::Request<()>| async move {
//!         assert_eq!(request.headers()["x-attempt"], "1");
//!         Ok::<_, std::convert::Infallible>(http::Response::new(()))
//!     });
//!
//! service.oneshot(http::Request::get("https://api.example.com/v1").body(())?).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`request_id`](crate::request_id) documents the fields and the level of this span, together with all other spans and
//! log events.
//!
//! # Order
//!
//! - Place this layer inside the limit layer, so that the span does not include the wait for a permit. This wait has
//!   its own event.
//! - Place this layer outside the auth layer, so that the span is created before the credential is added. A signature
//!   can then cover the headers that this layer adds.
//!
//! # Notes
//!
//! - The span ends when the response headers arrive. It does not cover the body.
//! - The span is current while the inner layers and the client are polled or dropped, so their spans and events become
//!   its children. The spans of tasks that they spawn do not become its children.
//! - If the caller drops an attempt, its span has no status, because the server did not fail.
//! - A request that the limiter refuses, or that an outer layer does not forward, has no attempt span.
//! - If no subscriber enables the span, nothing is formatted or allocated.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Span;

use crate::{
    config::text::Written,
    error::{BoxError, Error, MaybeRejected},
    headers,
    telemetry::{ResponseSummary, Sending},
};

/// Creates a span for each attempt.
///
/// ```
/// use http::HeaderName;
/// use tower_outbound::attempt_span::AttemptSpanLayer;
///
/// let layer = AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt"));
/// ```
///
/// # Default
///
/// By default nothing is added to the request, so that third-party servers learn neither attempt counts nor trace ids.
///
/// # Configuration
///
/// With the feature `serde`, the only field of this layer in a configuration file is `header`: see
/// [`with_attempt_header`](Self::with_attempt_header). `Serialize` omits the closure of
/// [`with_propagation`](Self::with_propagation).
#[derive(Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(expecting = "a table", default, deny_unknown_fields))]
pub struct AttemptSpanLayer {
    header: Option<Written<HeaderName>>,
    #[cfg_attr(feature = "serde", serde(skip))]
    propagate: Option<Arc<Propagate>>,
}

type Propagate = dyn Fn(&Span, &mut HeaderMap) + Send + Sync;

impl AttemptSpanLayer {
    /// Creates a layer with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends the number of the attempt, starting at 1, in the header `header`. Replaces a value set by the caller.
    pub fn with_attempt_header(mut self, header: HeaderName) -> Self {
        self.header = Some(Written(header));
        self
    }

    pub(crate) fn header(&self) -> Option<&HeaderName> {
        self.header.as_ref().map(|header| &header.0)
    }

    /// Calls `propagate` for each attempt. The closure writes the context of the attempt's span into the request's
    /// headers, so that the server's spans become children of that span. With the feature `otel`,
    /// `adapter::trace_context` writes W3C's `traceparent`.
    ///
    /// If no subscriber enables the span, `propagate` receives a disabled span. The span has the level TRACE, or INFO
    /// with [`with_info_spans`](crate::request_id::RequestIdLayer::with_info_spans). The headers that `propagate`
    /// receives have room for 500 more fields. A request with room for fewer fields is rejected before `propagate` is
    /// called.
    pub fn with_propagation(
        mut self,
        propagate: impl Fn(&Span, &mut HeaderMap) + Send + Sync + 'static,
    ) -> Self {
        self.propagate = Some(Arc::new(propagate));
        self
    }
}

impl fmt::Debug for AttemptSpanLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptSpanLayer")
            .field("header", &self.header)
            .field("propagates", &self.propagate.is_some())
            .finish()
    }
}

/// The service of [`AttemptSpanLayer`].
///
/// # Errors
///
/// Returns the inner service's error. Returns an error with [`Error::is_invalid_request`] if the request's headers have
/// no room for the fields that this layer adds.
#[derive(Debug, Clone)]
pub struct AttemptSpan<S> {
    inner: S,
    /// `None` if the layer adds no headers. A call then clones the service without an atomic operation.
    layer: Option<Arc<AttemptSpanLayer>>,
}

impl<S> AttemptSpan<S> {
    inner_service!();
}

impl<S> Layer<S> for AttemptSpanLayer {
    type Service = AttemptSpan<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let adds_headers = self.header.is_some() || self.propagate.is_some();
        AttemptSpan { inner, layer: adds_headers.then(|| Arc::new(self.clone())) }
    }
}

impl<S, B, R> Service<Request<B>> for AttemptSpan<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_readiness)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let layer = self.layer.as_deref();
        let numbered = layer.is_some_and(|layer| layer.header.is_some());
        let (sending, span, number) = Sending::begin(&request, numbered);
        let added = layer.map_or(Ok(()), |layer| layer.add_headers(request.headers_mut(), &span, number));
        let future = match added {
            Ok(()) => span.in_scope(|| MaybeRejected::Calling { future: self.inner.call(request) }),
            Err(error) => MaybeRejected::rejected(error),
        };
        ResponseFuture { future, span, sending }
    }
}

impl AttemptSpanLayer {
    fn add_headers(&self, headers: &mut HeaderMap, span: &Span, number: u32) -> Result<(), Error> {
        if let Some(header) = &self.header {
            headers::insert(headers, &header.0, HeaderValue::from(number))?;
        }
        if let Some(propagate) = &self.propagate {
            headers::check_room(headers)?;
            propagate(span, headers);
        }
        Ok(())
    }
}

pin_project! {
    /// The future of [`AttemptSpan`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        future: MaybeRejected<F>,
        // The span is current while the future is polled and dropped, as in `tracing::Instrumented`.
        span: Span,
        sending: Sending,
    }

    impl<F> PinnedDrop for ResponseFuture<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.sending.dropped(this.span);
            this.future.drop_in(this.span);
        }
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.span.enter();
        let result = ready!(this.future.poll(cx));
        drop(entered);
        this.sending.ended(this.span, result.as_ref().map(ResponseSummary::of));
        Poll::Ready(result)
    }
}
