use std::fmt;

/// Why a call failed: see [`Error::kind`](super::Error::kind).
///
/// [`as_str`](Self::as_str) returns the value of `error.type` in log events, spans and metrics.
///
/// ```
/// use tower_outbound::{Error, ErrorKind};
///
/// fn is_network(error: &Error) -> bool {
///     use ErrorKind::{ConnectRefused, ConnectTimeout, Dns, Proxy};
///     matches!(error.kind(), Dns | ConnectRefused | ConnectTimeout | Proxy)
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The host name could not be resolved.
    Dns,
    /// The server refused the connection, because no process listens on its port.
    ConnectRefused,
    /// Connecting took longer than the connector's timeout.
    ConnectTimeout,
    /// Any other failure to connect, such as an unreachable network.
    Connect,
    /// The proxy is unreachable, rejected the password, or did not connect to the server.
    Proxy,
    /// The TLS handshake failed: the certificate is not trusted, or the server does not use TLS.
    Tls,
    /// The server reset the connection or the HTTP/2 stream.
    Reset,
    /// The connection ended before the response headers were complete.
    Closed,
    /// The server sent something other than HTTP, or violated the protocol.
    Protocol,
    /// The request's body returned an error, or its length differs from the announced length.
    Body,
    /// An attempt took longer than its timeout.
    AttemptTimeout,
    /// The call took longer than its deadline.
    Deadline,
    /// The response's body stalled for longer than its idle timeout.
    BodyTimeout,
    /// The limiter refused the request.
    RateLimited,
    /// The request costs more permits than its limiter can ever grant.
    TooCostly,
    /// The credential could not be attached to the request.
    Auth,
    /// A layer or the client rejected the request as invalid.
    InvalidRequest,
    /// The inner service did not become ready.
    NotReady,
    /// A circuit breaker is open, and rejected the request without sending it: see
    /// [`DeliveryError::circuit_open`](super::DeliveryError::circuit_open).
    CircuitOpen,
    /// The inner service failed for a reason that this crate does not recognize.
    Other,
}

impl ErrorKind {
    /// Returns the kind as a lowercase word, such as `connect_refused`.
    pub fn as_str(&self) -> &'static str {
        self.texts().0
    }

    /// Returns the kind as a word, and a phrase for the message. For a timeout, [`Error`](super::Error) writes the
    /// limit of the timeout instead of the phrase.
    pub(crate) fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Dns => ("dns", "dns lookup failed"),
            Self::ConnectRefused => ("connect_refused", "connection refused"),
            Self::ConnectTimeout => ("connect_timeout", "timed out while connecting"),
            Self::Connect => ("connect", "could not connect"),
            Self::Proxy => ("proxy", "no connection through the proxy"),
            Self::Tls => ("tls", "tls handshake failed"),
            Self::Reset => ("reset", "connection or stream reset by the server"),
            Self::Closed => ("closed", "connection closed before the response"),
            Self::Protocol => ("protocol", "http protocol error"),
            Self::Body => ("body", "request body failed"),
            Self::AttemptTimeout => ("attempt_timeout", "attempt timed out"),
            Self::Deadline => ("deadline", "deadline exceeded"),
            Self::BodyTimeout => ("body_timeout", "response body stalled"),
            Self::RateLimited => ("rate_limited", "refused by the rate limiter"),
            Self::TooCostly => ("too_costly", "refused by the rate limiter"),
            Self::Auth => ("auth", "credential could not be attached"),
            Self::InvalidRequest => ("invalid_request", "invalid request"),
            Self::NotReady => ("not_ready", "service did not become ready"),
            Self::CircuitOpen => ("circuit_open", "circuit breaker is open"),
            Self::Other => ("other", "service failed"),
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
