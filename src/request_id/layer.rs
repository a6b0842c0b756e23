use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use tower_layer::Layer;
use tracing::Level;

use super::{SetRequestId, settings::Settings};
use crate::{call::Naming, id, random::Random};

/// Gives each call an id, sends it, and logs one event when the call ends.
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
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "super::config::Fields", into = "super::config::Fields"))]
pub struct RequestIdLayer {
    pub(super) settings: Arc<Settings>,
}

impl RequestIdLayer {
    /// The defaults.
    pub fn new() -> Self {
        const SERVER_HEADERS: [&str; 5] =
            ["x-request-id", "request-id", "x-amzn-requestid", "x-correlation-id", "cf-ray"];
        Self {
            settings: Arc::new(Settings {
                header: HeaderName::from_static("x-request-id"),
                naming: Arc::new(Naming {
                    service: None,
                    server_headers: SERVER_HEADERS.map(HeaderName::from_static).into(),
                }),
                level: Level::INFO,
                make: uuid_v7(Random::from_entropy()),
            }),
        }
    }

    pub(crate) fn header(&self) -> &HeaderName {
        &self.settings.header
    }

    /// Sends the id in this header.
    pub fn with_header(self, header: HeaderName) -> Self {
        self.set(|settings| settings.header = header)
    }

    /// Reads the server's own id from the first of these headers that the response has.
    ///
    /// Ignores some ids: see [`Report::server_request_id`](crate::Report::server_request_id).
    pub fn with_server_headers(self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        self.name(|naming| naming.server_headers = headers.into_iter().collect())
    }

    /// Names the service: `service` in logs, spans and metrics.
    ///
    /// ```
    /// use tower_outbound::request_id::RequestIdLayer;
    ///
    /// let tenant = String::from("acme");
    /// RequestIdLayer::new().with_service(format!("mail-{tenant}"));
    /// ```
    pub fn with_service(self, name: impl Into<Arc<str>>) -> Self {
        self.name(|naming| naming.service = Some(name.into()))
    }

    /// Logs completed calls at this level, `INFO` by default. Failed calls are always logged at `WARN`.
    ///
    /// ```
    /// use tower_outbound::request_id::RequestIdLayer;
    ///
    /// RequestIdLayer::new().with_log_level(tracing::Level::DEBUG);
    /// ```
    pub fn with_log_level(self, level: Level) -> Self {
        self.set(|settings| settings.level = level)
    }

    /// Makes the ids of calls that have none.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use http::HeaderValue;
    /// use tower_outbound::request_id::RequestIdLayer;
    ///
    /// let count = AtomicU64::new(0);
    /// RequestIdLayer::new().with_maker(move || HeaderValue::from(count.fetch_add(1, Ordering::Relaxed)));
    /// ```
    pub fn with_maker(self, make: impl Fn() -> HeaderValue + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.make = Arc::new(make))
    }

    /// Draws the random part of the ids from this seed, for a test. Replaces [`with_maker`](Self::with_maker).
    pub fn with_seed(self, seed: u64) -> Self {
        self.set(|settings| settings.make = uuid_v7(Random::seeded(seed)))
    }

    fn name(self, change: impl FnOnce(&mut Naming)) -> Self {
        self.set(|settings| change(Arc::make_mut(&mut settings.naming)))
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

fn uuid_v7(random: Random) -> Arc<dyn Fn() -> HeaderValue + Send + Sync> {
    Arc::new(move || id::uuid_v7(&random))
}

impl Default for RequestIdLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for RequestIdLayer {
    type Service = SetRequestId<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SetRequestId::new(inner, Arc::clone(&self.settings))
    }
}
