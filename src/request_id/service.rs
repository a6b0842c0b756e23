use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{HeaderName, HeaderValue, Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;
use tracing::{Level, Span};

use super::RequestId;
use crate::{
    body::BrokenBody,
    call::{CallContext, Identity, Naming, Report, extension_beside},
    config::text::Written,
    error::{BoxError, Error, MaybeRejected},
    headers,
    random::Random,
    telemetry::{self, OrderWarning, ResponseSummary, Subject},
    uuid,
};

/// Gives each call an id, sends the id to the server, and logs one event when the call ends.
///
/// ```
/// use http::HeaderName;
/// use tower_outbound::request_id::RequestIdLayer;
///
/// let layer = RequestIdLayer::new()
///     .with_service("orders")
///     .with_header(HeaderName::from_static("x-correlation-id"));
/// ```
///
/// # Default
///
/// The id is a UUID v7 in `x-request-id`, unless the caller has set that header or has inserted a
/// [`RequestId`](super::RequestId) into the request's extensions. The server's id is read from the first of
/// `x-request-id`, `request-id`, `x-amzn-requestid`, `x-correlation-id` and `cf-ray` that the response contains.
///
/// # Clone
///
/// All clones of the layer share the source of ids, so that no two calls get the same id.
///
/// # Configuration
///
/// With the feature `serde`, a configuration file has the fields `header` and `server_headers`. `Serialize` omits the
/// other settings.
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(expecting = "a table", default, deny_unknown_fields))]
pub struct RequestIdLayer {
    header: Written<HeaderName>,
    #[cfg_attr(feature = "serde", serde(rename = "server_headers", with = "super::server_headers"))]
    naming: Arc<Naming>,
    #[cfg_attr(feature = "serde", serde(skip))]
    level: Level,
    #[cfg_attr(feature = "serde", serde(skip))]
    has_info_spans: bool,
    /// The WARN event for a layer that is inside a retry layer.
    #[cfg_attr(feature = "serde", serde(skip))]
    order_warning: Arc<OrderWarning>,
    #[cfg_attr(feature = "serde", serde(skip))]
    make: Arc<dyn Fn() -> HeaderValue + Send + Sync>,
}

impl RequestIdLayer {
    /// Creates a layer with the defaults.
    pub fn new() -> Self {
        const SERVER_HEADERS: [&str; 5] =
            ["x-request-id", "request-id", "x-amzn-requestid", "x-correlation-id", "cf-ray"];
        let random = Random::from_entropy();
        Self {
            header: Written(HeaderName::from_static("x-request-id")),
            naming: Arc::new(Naming {
                service: None,
                server_headers: SERVER_HEADERS.map(HeaderName::from_static).into(),
            }),
            level: Level::INFO,
            has_info_spans: false,
            order_warning: Arc::default(),
            make: Arc::new(move || uuid::v7_header(&random)),
        }
    }

    pub(crate) fn header(&self) -> &HeaderName {
        &self.header.0
    }

    /// Sends the id in this header.
    pub fn with_header(mut self, header: HeaderName) -> Self {
        self.header = Written(header);
        self
    }

    /// Sets the headers that may contain the server's own id. The layer uses the first of these headers that the
    /// response contains.
    ///
    /// The layer ignores some ids: see [`Report::server_request_id`](crate::Report::server_request_id).
    pub fn with_server_headers(mut self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        Arc::make_mut(&mut self.naming).server_headers = headers.into_iter().collect();
        self
    }

    /// Sets the name of the called service, which is `service` in logs, spans and metrics.
    ///
    /// ```
    /// use tower_outbound::request_id::RequestIdLayer;
    ///
    /// let tenant = String::from("acme");
    /// RequestIdLayer::new().with_service(format!("mail-{tenant}"));
    /// ```
    pub fn with_service(mut self, name: impl Into<Arc<str>>) -> Self {
        Arc::make_mut(&mut self.naming).service = Some(name.into());
        self
    }

    /// Sets the level at which completed calls are logged, `INFO` by default. Failed calls are always logged at `WARN`,
    /// except those that the [limiter refused](super#refused-calls).
    ///
    /// ```
    /// use tower_outbound::request_id::RequestIdLayer;
    ///
    /// RequestIdLayer::new().with_log_level(tracing::Level::DEBUG);
    /// ```
    pub fn with_log_level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// Raises the spans `call` and `attempt` to INFO, so that an exporter of traces that filters at INFO receives them.
    /// Without this setting, `call` is at DEBUG and `attempt` at TRACE, with any features of this crate. The events of
    /// the call then do not repeat the [fields of the span](super#the-log).
    ///
    /// The setting also applies to the attempts of an inner
    /// [`AttemptSpanLayer`](crate::attempt_span::AttemptSpanLayer).
    ///
    /// ```
    /// use tower_outbound::request_id::RequestIdLayer;
    ///
    /// RequestIdLayer::new().with_info_spans();
    /// ```
    pub fn with_info_spans(mut self) -> Self {
        self.has_info_spans = true;
        self
    }

    /// Sets the function that creates an id for each call that does not have one yet.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use http::HeaderValue;
    /// use tower_outbound::request_id::RequestIdLayer;
    ///
    /// let count = AtomicU64::new(0);
    /// RequestIdLayer::new().with_maker(move || HeaderValue::from(count.fetch_add(1, Ordering::Relaxed)));
    /// ```
    pub fn with_maker(mut self, make: impl Fn() -> HeaderValue + Send + Sync + 'static) -> Self {
        self.make = Arc::new(make);
        self
    }
}

impl Default for RequestIdLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RequestIdLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestIdLayer")
            .field("header", &self.header)
            .field("naming", &self.naming)
            .field("level", &self.level)
            .field("has_info_spans", &self.has_info_spans)
            .finish_non_exhaustive()
    }
}

/// The service of [`RequestIdLayer`].
///
/// # Errors
///
/// Returns the inner service's error, with the [`Report`](crate::Report) of the call. Returns an error with
/// [`Error::is_invalid_request`] if the request's headers have no room for another field.
#[derive(Debug, Clone)]
pub struct SetRequestId<S> {
    inner: S,
    layer: Arc<RequestIdLayer>,
}

impl<S> SetRequestId<S> {
    inner_service!();
}

impl<S> Layer<S> for RequestIdLayer {
    type Service = SetRequestId<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SetRequestId { inner, layer: Arc::new(self.clone()) }
    }
}

impl<S, B, R> Service<Request<B>> for SetRequestId<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_readiness)
    }

    // Not inlined, so that the compiler constructs the future in its final place.
    #[inline(never)]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let layer = &self.layer;
        let own = request.extensions().get().map(|RequestId(id)| id.clone());
        let id = || own.clone().unwrap_or_else(|| (layer.make)());
        let (id, added) = match headers::get_or_insert_with(request.headers_mut(), layer.header(), id) {
            Ok(sent) => {
                let id = sent.clone();
                headers::mark_unique(sent);
                (id, Ok(()))
            }
            // The id does not fit into the request's headers.
            Err(error) => (id(), Err(error)),
        };
        let span = telemetry::call_span(layer.has_info_spans, layer.naming.service.as_deref(), &id, &request);
        let identity = Identity {
            naming: Arc::clone(&layer.naming),
            request_id: id,
            in_span: !span.is_disabled(),
            shows_attempt: layer.level <= Level::INFO && telemetry::joins_attempt(),
        };
        let (call, has_another_id) = CallContext::identified(request.extensions_mut(), identity);
        if has_another_id {
            telemetry::request_id_inside_retry(&call, &layer.order_warning);
        }
        if layer.has_info_spans {
            call.raise_spans();
        }
        let continues = extension_beside::<BrokenBody>(Some(&call), request.extensions()).is_some();
        let subject = Subject::of(layer.level, &request, &span, continues);
        match added {
            Ok(()) => {
                let entered = span.enter();
                let future = self.inner.call(request);
                drop(entered);
                ResponseFuture { future: MaybeRejected::Calling { future }, span, call, subject }
            }
            Err(error) => ResponseFuture { future: MaybeRejected::rejected(error), span, call, subject },
        }
    }
}

pin_project! {
    /// The future of [`SetRequestId`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        future: MaybeRejected<F>,
        // The span is current while the future is polled and dropped, as in `tracing::Instrumented`.
        span: Span,
        call: CallContext,
        // The parts of the request for the log event. `None` if neither a subscriber nor a metrics recorder was active
        // when the call started.
        subject: Option<Box<Subject>>,
    }

    impl<F> PinnedDrop for ResponseFuture<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
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
        let mut result = ready!(this.future.poll(cx));
        if let Ok(response) = &mut result {
            let report = response.extensions().get::<Report>();
            let (any, own) =
                (report.is_some(), report.is_some_and(|report| this.call.is_reported_by(report)));
            // If the report belongs to this call, an inner retry layer has already inserted it and recorded the
            // server's id. The report of another call, which an inner client made, is not replaced.
            if !own {
                this.call.keep_server_id(response.headers());
            }
            if !any {
                response.extensions_mut().insert(this.call.report());
            }
        }
        let outcome = result.as_ref().map(ResponseSummary::of);
        if let Some(subject) = this.subject {
            telemetry::call(subject, this.call, outcome);
        }
        drop(entered);
        telemetry::end_call(this.span, this.call, outcome);
        if let Err(error) = &mut result {
            error.set_report(this.call.report());
        }
        Poll::Ready(result)
    }
}
