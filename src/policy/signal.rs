//! The signal of a server about its limits, which a dialect or an inner layer reads from a response.

use std::time::Duration;

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
/// | [permanent](Self::with_permanent) | does not change its rate, and does not pause | no retry |
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

    /// States that further attempts fail until the account changes, such as its spend cap or monthly quota.
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
