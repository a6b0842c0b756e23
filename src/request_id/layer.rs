use std::{fmt, sync::Arc};

use http::{HeaderName, HeaderValue};
use tracing::Level;

use crate::{call::Naming, config::text::Written, random::Random, telemetry::OrderWarning, uuid};

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
    pub(super) header: Written<HeaderName>,
    #[cfg_attr(feature = "serde", serde(rename = "server_headers", with = "super::config"))]
    pub(super) naming: Arc<Naming>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) level: Level,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) has_info_spans: bool,
    /// The WARN event for a layer that is inside a retry layer.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) order_warning: Arc<OrderWarning>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) make: Arc<dyn Fn() -> HeaderValue + Send + Sync>,
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
