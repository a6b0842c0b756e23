//! How a service reports its limits: by status, by headers, or in a way that only its user knows.

#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::{moment::Scale, rate_limit::QuotaHeaders};
use crate::config::InvalidConfig;

/// How one service reports its limits, in addition to the statuses and headers that need no setting.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderName, HeaderValue, StatusCode};
/// use tower_outbound::limit::{Dialect, QuotaHeaders, ServerSignal};
///
/// let header = HeaderName::from_static;
/// let credits = QuotaHeaders::new(header("x-credits-left")).with_window(Duration::from_secs(60));
/// let dialect = Dialect::new()
///     .with_quota_headers(credits)?
///     .with_delay_header(header("x-credits-wait"))?
///     .with_throttle_status(StatusCode::IM_A_TEAPOT)?
///     // The spend cap of an account: every request fails until the account's cap is raised.
///     .with_permanent_header(header("x-reason"), HeaderValue::from_static("spend-cap"))?
///     .with_signal(|status, headers| {
///         // An overload is a 500 with a header, and no other 500 has it.
///         let is_overloaded = status == 500 && headers.contains_key("x-overloaded");
///         is_overloaded.then(ServerSignal::throttled)
///     });
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// # Clone
///
/// A clone is cheap.
#[derive(Clone, Default)]
pub struct Dialect(Option<Arc<Custom>>);

/// The dialect of a response that nobody has configured.
pub(crate) static STANDARD: Dialect = Dialect(None);

#[derive(Clone, Default)]
struct Custom {
    quotas: Vec<QuotaHeaders>,
    /// The headers that state a delay, with the unit of a number.
    delays: Vec<(HeaderName, Scale)>,
    statuses: Vec<StatusCode>,
    /// The headers of permanent throttles, each with its value, or `None` for any value.
    permanent: Vec<(HeaderName, Option<HeaderValue>)>,
    signal: Option<Arc<SignalOf>>,
}

/// Returns the signal of a response, or `None` if its status and headers have their usual meaning.
type SignalOf = dyn Fn(StatusCode, &HeaderMap) -> Option<ServerSignal> + Send + Sync;

impl Dialect {
    /// Creates a dialect without any addition.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also reads the quota that these headers report.
    ///
    /// # Errors
    ///
    /// Returns an error if a header appears twice in the dialect, or is never read, if the quota lacks a header or a
    /// window that it needs, or if its window is zero.
    pub fn with_quota_headers(self, quota: QuotaHeaders) -> Result<Self, InvalidConfig> {
        self.set(|custom| custom.quotas.push(quota)).checked("quota header")
    }

    /// Reads this header like `Retry-After`, and before it. A number is in seconds. The guide lists the other
    /// [forms](crate::guide::services#delays-and-resets). Of several such headers, the first that is valid counts, in
    /// the order of the calls.
    ///
    /// # Errors
    ///
    /// Returns an error if the header appears twice in the dialect.
    pub fn with_delay_header(self, name: HeaderName) -> Result<Self, InvalidConfig> {
        self.with_delay(name, Scale::Seconds)
    }

    /// Like [`with_delay_header`](Self::with_delay_header), but a number is in milliseconds.
    ///
    /// # Errors
    ///
    /// Returns an error if the header appears twice in the dialect.
    pub fn with_delay_header_in_millis(self, name: HeaderName) -> Result<Self, InvalidConfig> {
        self.with_delay(name, Scale::Millis)
    }

    fn with_delay(self, name: HeaderName, scale: Scale) -> Result<Self, InvalidConfig> {
        self.set(|custom| custom.delays.push((name, scale))).checked("delay header")
    }

    /// Returns an error for the `added` header if a header has two meanings, or if a quota can never be read.
    fn checked(self, added: &'static str) -> Result<Self, InvalidConfig> {
        let delays = self.delays().iter().map(|(name, _)| name);
        QuotaHeaders::check(added, self.quotas(), delays).map(|()| self)
    }

    /// Treats a response with this status like a 429: the server rejected the request without processing it.
    ///
    /// Use only a status that the service sends for no other error, because the limiter pauses, and the request is
    /// retried with any method.
    ///
    /// # Errors
    ///
    /// Returns an error if the status is below 400.
    pub fn with_throttle_status(self, status: StatusCode) -> Result<Self, InvalidConfig> {
        if status.as_u16() < 400 {
            return Err(InvalidConfig::new("throttle status", status.as_u16().to_string(), "at least 400"));
        }
        Ok(self.set(|custom| custom.statuses.push(status)))
    }

    /// Treats a response with this header and a status of at least 400 as a permanent throttle, such as a spend cap or
    /// a monthly quota: the server rejected the request without processing it, and rejects further ones until the
    /// account changes. The call ends without a retry, except at another member of a
    /// [`Pool`](crate::stack::Pool#retries), and the limiter does not pause. With a `value`, only a header with exactly
    /// this value has this meaning.
    ///
    /// # Errors
    ///
    /// Returns an error if the dialect already has the header with this or any value.
    pub fn with_permanent_header(
        self,
        name: HeaderName,
        value: impl Into<Option<HeaderValue>>,
    ) -> Result<Self, InvalidConfig> {
        let value = value.into();
        let is_same = |(known, of): &(_, Option<_>)| {
            *known == name && (*of == value || of.is_none() || value.is_none())
        };
        if self.0.as_ref().is_some_and(|custom| custom.permanent.iter().any(is_same)) {
            let expected = "each header once, or several times with different values";
            return Err(InvalidConfig::new("permanent header", name.as_str().to_owned(), expected));
        }
        Ok(self.set(|custom| custom.permanent.push((name, value))))
    }

    /// Sets a function that reads the server's signal from the status and the headers. If it returns `None`, the status
    /// and the headers have their usual meaning. The rate-limit layer and the retry layer each call it once for a
    /// response, so it should be fast.
    pub fn with_signal(
        self,
        signal: impl Fn(StatusCode, &HeaderMap) -> Option<ServerSignal> + Send + Sync + 'static,
    ) -> Self {
        self.set(|custom| custom.signal = Some(Arc::new(signal)))
    }

    fn set(mut self, change: impl FnOnce(&mut Custom)) -> Self {
        change(Arc::make_mut(self.0.get_or_insert_default()));
        self
    }

    /// Returns whether nothing was added.
    #[cfg(feature = "serde")]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    pub(crate) fn quotas(&self) -> &[QuotaHeaders] {
        self.0.as_ref().map_or(&[], |custom| &custom.quotas)
    }

    #[inline]
    pub(super) fn delays(&self) -> &[(HeaderName, Scale)] {
        self.0.as_ref().map_or(&[], |custom| &custom.delays)
    }

    #[inline]
    pub(super) fn throttles_with(&self, status: StatusCode) -> bool {
        self.0.as_ref().is_some_and(|custom| custom.statuses.contains(&status))
    }

    #[inline]
    pub(crate) fn signal(&self, status: StatusCode, headers: &HeaderMap) -> Option<ServerSignal> {
        let custom = self.0.as_ref()?;
        custom.signal.as_ref().and_then(|signal| signal(status, headers)).or_else(|| {
            let is_stated = |(name, value): &(HeaderName, Option<HeaderValue>)| {
                headers.get_all(name).iter().any(|found| value.as_ref().is_none_or(|value| found == value))
            };
            let is_permanent = status.as_u16() >= 400 && custom.permanent.iter().any(is_stated);
            is_permanent.then(|| ServerSignal::throttled().with_permanent().with_not_processed())
        })
    }

    /// Returns whether a header states a quota or a delay of this dialect.
    #[inline]
    pub(super) fn reads_any(&self, headers: &HeaderMap) -> bool {
        let is_read = |quota: &QuotaHeaders| headers.keys().any(|name| quota.field(name).is_some());
        self.0.as_ref().is_some_and(|custom| {
            custom.quotas.iter().any(is_read)
                || custom.delays.iter().any(|(name, _)| headers.contains_key(name))
        })
    }
}

impl fmt::Debug for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Dialect");
        if let Some(custom) = &self.0 {
            debug.field("quotas", &custom.quotas).field("delays", &custom.delays);
            debug.field("statuses", &custom.statuses).field("permanent", &custom.permanent);
            debug.field("has_signal", &custom.signal.is_some());
        }
        debug.finish()
    }
}

/// Which requests a limit of a server applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All requests of the account.
    Account,
    /// The requests to one endpoint, or to one other part of the service, such as a channel or a tenant.
    Endpoint,
}

/// Describes a response with regard to the limits of its server. The function of a [`Dialect`](crate::limit::Dialect)
/// returns it, or an inner layer that has read the body inserts it into the extensions of the response.
///
/// The signal of an inner layer takes precedence over that of the function. Both take precedence over the status and
/// the headers. The rate-limit layer and the retry layer act on the signal:
///
/// | signal | limiter | retry |
/// |---|---|---|
/// | [`accepted`](Self::accepted) | as after a 200 | by status |
/// | [`throttled`](Self::throttled) | as after a 429 | with the throttled backoff |
/// | with a [delay](Self::with_delay) | if throttled, pauses all requests for it | waits as long |
/// | with [remaining](Self::with_remaining) permits | as if the headers reported them | if throttled without a delay, waits for the reset of an empty quota |
/// | with a [scope](Self::with_scope) | if throttled, only the limiter of this scope of a [`Joint`](crate::limit::Joint) | |
/// | [permanent](Self::with_permanent) | does not change its rate, and does not pause | no retry, except at another member of a pool |
/// | [not processed](Self::with_not_processed) | | any method, because the request was rejected |
///
/// ```
/// use std::time::Duration;
/// use http::Response;
/// use tower_outbound::limit::ServerSignal;
///
/// /// GraphQL services report a throttle with a 200 and an error in the body.
/// fn mark(response: &mut Response<String>) {
///     if response.body().contains("\"THROTTLED\"") {
///         response.extensions_mut().insert(ServerSignal::throttled().with_delay(Duration::from_secs(1)));
///     }
/// }
/// # mark(&mut Response::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerSignal {
    pub(crate) scope: Option<Scope>,
    pub(crate) is_throttled: bool,
    pub(crate) delay: Option<Duration>,
    pub(crate) is_permanent: bool,
    pub(crate) not_processed: bool,
    pub(crate) remaining: Option<(u64, Duration)>,
}

impl ServerSignal {
    /// Returns a signal that the server accepted the request, whatever its status.
    pub const fn accepted() -> Self {
        Self {
            scope: None,
            is_throttled: false,
            delay: None,
            is_permanent: false,
            not_processed: false,
            remaining: None,
        }
    }

    /// Returns a signal that the server rejects requests because there are too many.
    pub const fn throttled() -> Self {
        Self { is_throttled: true, ..Self::accepted() }
    }

    /// Sets the delay that the server requested, counted from the arrival of the response. Default: the delay that the
    /// headers state, if any.
    pub const fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// States that the server accepts `left` more requests until `reset_after` has passed since the response arrived.
    /// The limiter applies this quota like those of the headers, and in addition to them. With the
    /// [scope](Self::with_scope) of an endpoint, it applies only to the limiter of this endpoint.
    pub const fn with_remaining(mut self, left: u64, reset_after: Duration) -> Self {
        self.remaining = Some((left, reset_after));
        self
    }

    /// Limits a throttled signal to this scope: a [`Joint`](crate::limit::Joint) applies it only to the limiter of this
    /// scope. A signal that the server accepted the request applies to both limiters.
    pub const fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// States that further attempts fail until the account changes, such as its spend cap or monthly quota. In a
    /// [`Pool`](crate::stack::Pool#retries), the member of the response pauses if another one may serve the request.
    pub const fn with_permanent(mut self) -> Self {
        self.is_permanent = true;
        self
    }

    /// States that the server did not process the request, so a retry is safe for every method. This has no effect on a
    /// response with a status below 400, because such a status reports that the server did process the request. If a
    /// service rejects requests with a 200, as some GraphQL services do, declare the request
    /// [idempotent](crate::retry#when-a-request-is-retried), or change the status in a layer below the stack.
    pub const fn with_not_processed(mut self) -> Self {
        self.not_processed = true;
        self
    }
}

/// Marks a response with a permanent signal if another member of a [`Pool`](crate::stack::Pool) is expected to serve
/// the request. The member of the response then pauses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeavesMember;
