use std::{fmt, sync::Arc};

use http::{HeaderName, HeaderValue};
use tracing::Level;

use crate::{call::Naming, config::text::Written, random::Random, uuid};

/// Gives each call an id, sends it, and logs one event when the call ends.
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
/// A UUID v7 in `x-request-id`, unless the caller set that header or put an [`RequestId`](super::RequestId) into the request's
/// extensions. The server's id comes from the first of `x-request-id`, `request-id`, `x-amzn-requestid`,
/// `x-correlation-id` and `cf-ray`.
///
/// # Clone
///
/// Clones share the source of ids, so that no two of them make the same.
///
/// # Configuration
///
/// With the feature `serde` a file has the fields `header` and `server_headers`. `Serialize` omits the other settings.
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct RequestIdLayer {
    pub(super) header: Written<HeaderName>,
    #[cfg_attr(feature = "serde", serde(rename = "server_headers", with = "super::config"))]
    pub(super) naming: Arc<Naming>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) level: Level,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) make: Arc<dyn Fn() -> HeaderValue + Send + Sync>,
}

impl RequestIdLayer {
    /// The defaults.
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

    /// Reads the server's own id from the first of these headers that the response has.
    ///
    /// Ignores some ids: see [`Report::server_request_id`](crate::Report::server_request_id).
    pub fn with_server_headers(mut self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        Arc::make_mut(&mut self.naming).server_headers = headers.into_iter().collect();
        self
    }

    /// Names the service: `service` in logs, spans and metrics.
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

    /// Logs completed calls at this level, `INFO` by default. Failed calls are always logged at `WARN`.
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

    /// Makes the ids of calls without an existing id.
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
            .finish_non_exhaustive()
    }
}
