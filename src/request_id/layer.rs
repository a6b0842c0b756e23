use std::{fmt, sync::Arc};

use http::HeaderName;
use tower_layer::Layer;

use super::{MakeRequestId, RequestId, id::UuidV7};
use crate::random::Random;

/// Gives each call an id, sends it, and writes one line about each call when it ends.
///
/// # Default
///
/// A UUID v7 in `x-request-id`, unless the caller has set that header or put an [`Id`](super::Id) into the request's
/// extensions. The server's id is looked for in `x-request-id`, `request-id`,
/// `x-amzn-requestid`, `x-correlation-id` and `cf-ray`, in this order.
///
/// # Clone
///
/// Clones share the source of ids, so that no two of them make the same.
#[derive(Debug, Clone)]
pub struct RequestIdLayer {
    settings: Arc<Settings>,
}

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) header: HeaderName,
    pub(super) server_headers: Arc<[HeaderName]>,
    pub(super) service: Option<&'static str>,
    pub(super) make: Arc<dyn MakeRequestId>,
}

impl RequestIdLayer {
    /// The defaults.
    pub fn new() -> Self {
        const SERVER_HEADERS: [&str; 5] =
            ["x-request-id", "request-id", "x-amzn-requestid", "x-correlation-id", "cf-ray"];
        Self {
            settings: Arc::new(Settings {
                header: HeaderName::from_static("x-request-id"),
                server_headers: SERVER_HEADERS.map(HeaderName::from_static).into(),
                service: None,
                make: Arc::new(UuidV7(Random::from_entropy())),
            }),
        }
    }

    /// Sends the id in this header.
    pub fn with_header(self, header: HeaderName) -> Self {
        self.set(|settings| settings.header = header)
    }

    /// Looks for the server's own id in these headers; the first that the answer has is kept, but for one that repeats the
    /// key that an [`AuthLayer`](crate::auth::AuthLayer) has sent, that is marked sensitive, or that has more than
    /// [256 bytes](crate::Report::MAX_SERVER_REQUEST_ID).
    pub fn with_server_headers(self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        self.set(|settings| settings.server_headers = headers.into_iter().collect())
    }

    /// Names the service in the log, as `service`.
    pub fn with_service(self, name: &'static str) -> Self {
        self.set(|settings| settings.service = Some(name))
    }

    /// Names the service unless it has a name.
    pub(crate) fn with_default_service(self, name: &'static str) -> Self {
        match self.settings.service {
            Some(_) => self,
            None => self.with_service(name),
        }
    }

    /// Makes ids of another form, for the calls that bring none.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use http::HeaderValue;
    /// use tower_outbound::request_id::RequestIdLayer;
    ///
    /// let count = AtomicU64::new(0);
    /// RequestIdLayer::new().with_maker(move || HeaderValue::from(count.fetch_add(1, Ordering::Relaxed)));
    /// ```
    pub fn with_maker(self, make: impl MakeRequestId + 'static) -> Self {
        self.set(|settings| settings.make = Arc::new(make))
    }

    /// Draws the random part of the ids from this seed, for a test. In place of
    /// [`with_maker`](Self::with_maker).
    pub fn with_seed(self, seed: u64) -> Self {
        self.with_maker(UuidV7(Random::seeded(seed)))
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl Default for RequestIdLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for RequestIdLayer {
    type Service = RequestId<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RequestId::new(inner, Arc::clone(&self.settings))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("header", &self.header)
            .field("server_headers", &self.server_headers)
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}
