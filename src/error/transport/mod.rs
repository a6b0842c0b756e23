//! Determines from the inner service's error why a request failed, and whether the server may have processed it.
//!
//! The deepest known error determines the kind. The causes of a request body's error are skipped, because they may
//! concern another connection.
//!
//! The first transport error or [`DeliveryError`] in the chain determines the delivery. Errors below it may concern
//! another connection, for example the connection from which the request's body was read. If the chain contains
//! neither, the server may have processed the request. If the request's body failed, callers of this module ignore "not
//! sent", because an unknown client may return the body's error as its own.
//!
//! | error | delivery |
//! |---|---|
//! | the service's own `DeliveryError::not_sent` or `circuit_open`, `ConnectionRefused`, or tower's `Overloaded` | not sent |
//! | hyper-util's client: no connection was made, for any reason | not sent |
//! | hyper-util's `HttpConnector`, also inside the error of another client | not sent |
//! | hyper: canceled before the request was written, or the connection was already closed | not sent |
//! | h2: the server reset the stream with `REFUSED_STREAM` (RFC 9113 §8.7) | not sent |
//! | `HostUnreachable`, `NetworkUnreachable` or `AddrNotAvailable` without one of the connect errors above | maybe processed |
//! | GOAWAY, a reset connection, a body that failed, and any other error | maybe processed |
//!
//! Without the feature `hyper`, only the errors in the first row of this table count as "not sent".
//!
//! Some failures are permanent, so that no retry follows: see the table in `guide/retries.md`. The types of the errors
//! show them. The texts of errors without a public type are compared. A text that is not recognized counts as a
//! temporary failure.

#[cfg(feature = "client")]
mod connect;
#[cfg(feature = "hyper")]
mod hyper;
#[cfg(test)]
mod tests;

#[cfg(feature = "proxy")]
pub(crate) use self::connect::ProxyRejection;
#[cfg(feature = "client")]
pub(crate) use self::connect::{ConnectError, ConnectPhase};

use std::{error::Error as StdError, io};

use tower::load_shed::error::Overloaded;

use super::{
    BoxError, DeliveryError, Error, ErrorKind,
    call::Failed,
    chain::{cause, chain},
    delivery::{MAYBE, NEVER_SENT, NOT_SENT, Proof},
};

impl Error {
    /// Wraps the error of an inner service. Returns an `Error` of this crate unchanged.
    pub(crate) fn from_service(error: impl Into<BoxError>) -> Self {
        match error.into().downcast::<Self>() {
            Ok(own) => *own,
            Err(other) => {
                let (kind, proof) = read(&*other);
                Self::of(Failed::Service(proof), kind, None, Some(other))
            }
        }
    }

    /// Wraps the error of a response body for the retry decision. The server has responded, so the error never proves
    /// that the request was not processed.
    #[cfg(feature = "client")]
    pub(crate) fn of_body(error: BoxError) -> Self {
        let own = error.downcast_ref::<Self>().filter(|own| own.is_timeout());
        let (failed, kind, time) = match own {
            Some(own) => (Failed::Layer, own.kind(), own.inner.time),
            None => (Failed::Service(MAYBE), read(&*error).0, None),
        };
        let mut wrapped = Self::of(failed, kind, time, Some(error));
        wrapped.inner.of_body = true;
        wrapped
    }
}

#[cfg(feature = "client")]
impl Error {
    /// Wraps the error of a request that hyper has returned because it had not begun to send it.
    pub(crate) fn returned(error: ::hyper::Error) -> Self {
        let mut error = Self::from_service(error);
        error.inner.failed = Failed::Service(NOT_SENT);
        error
    }

    /// Creates the error of a request that must not be sent, because its attempt has already failed as not sent.
    pub(crate) fn abandoned() -> Self {
        let mut error = Self::from_service("the attempt ended before a connection was available");
        error.inner.failed = Failed::Service(NOT_SENT);
        error
    }
}

/// Returns why the service failed, and what the error proves about the delivery.
fn read(error: &(dyn StdError + 'static)) -> (ErrorKind, Proof) {
    let own = error.downcast_ref::<DeliveryError>();
    let proof = states_not_sent(error).then(|| own.map_or(NOT_SENT, |own| own.proof));
    let (kind, connecting, is_of_proxy, lasting) = (ErrorKind::Other, false, false, false);
    let mut found = Findings { kind, connecting, proof, decided: None, is_of_proxy, lasting };
    for error in chain(error) {
        let kind = found.read_error(error);
        found.decided = found.decided.or(kind);
    }
    let decided = found.decided.unwrap_or(found.kind);
    let kind = if found.is_of_proxy { ErrorKind::Proxy } else { decided };
    let mut proof = found.proof.unwrap_or(MAYBE);
    // A client that rejects a request does so each time.
    proof.lasting |= found.lasting || kind == ErrorKind::InvalidRequest;
    (kind, proof)
}

/// Returns whether the outermost error shows that nothing was sent. An inner error may concern another connection or
/// request, for example the connection from which the request's body was read.
fn states_not_sent(error: &(dyn StdError + 'static)) -> bool {
    // An established TCP connection never fails with `ConnectionRefused`. It can fail with every other kind of connect
    // error.
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    // A service may wrap its `DeliveryError` in an I/O error.
    let marked = || chain(error).any(|error| error.is::<DeliveryError>());
    error.downcast_ref().is_some_and(refused) && !marked()
        || error.downcast_ref().is_some_and(|error: &DeliveryError| error.proof.not_sent)
        // tower's `LoadShed` returns this error instead of calling its inner service.
        || error.is::<Overloaded>()
}

impl Findings {
    /// Updates the kind and the proof with one error of the chain. Returns the final kind if no deeper error can change
    /// the kind.
    fn read_error(&mut self, error: &(dyn StdError + 'static)) -> Option<ErrorKind> {
        #[cfg(feature = "client")]
        if let Some(error) = error.downcast_ref::<ConnectError>() {
            self.prove(NOT_SENT);
            self.connect();
            self.is_of_proxy |= error.is_of_proxy() && self.decided.is_none();
            return None;
        }
        #[cfg(feature = "proxy")]
        if error.is::<ProxyRejection>() {
            return self.last_as(ErrorKind::Connect);
        }
        #[cfg(feature = "hyper")]
        if let Some(kind) = self.read_hyper_error(error) {
            return kind;
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            self.kind = self.io(error.kind()).unwrap_or(self.kind);
            let text = error.to_string();
            if is_unknown_name(&text) {
                self.last();
            }
            // The error of the standard library's resolver.
            if is_unknown_name(&text) || text.starts_with("failed to lookup address information") {
                self.kind = ErrorKind::Dns;
            }
            return None;
        }
        if let Some(error) = Error::of_call(error) {
            if matches!(error.failed(), Failed::Service(Proof { lasting: true, .. })) {
                self.last();
            }
            // An inner retry layer made several attempts, and the server may have processed one of them.
            if error.is_after_processing() {
                self.prove(MAYBE);
            }
            return Some(error.kind());
        }
        if let Some(error) = error.downcast_ref::<DeliveryError>() {
            self.prove(Proof { not_sent: false, ..error.proof });
            // The error of an open circuit breaker.
            if error.proof == NEVER_SENT {
                return self.last_as(ErrorKind::CircuitOpen);
            }
        }
        if error.is::<Overloaded>() {
            return Some(ErrorKind::NotReady);
        }
        if error.is::<tokio::time::error::Elapsed>() || error.is::<tower::timeout::error::Elapsed>() {
            return Some(if self.connecting { ErrorKind::ConnectTimeout } else { ErrorKind::AttemptTimeout });
        }
        #[cfg(feature = "rustls")]
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            // The request is not retried, because the caller should learn immediately that it may be connected to the
            // wrong server.
            if is_lasting(error) {
                self.last();
            }
            return Some(ErrorKind::Tls);
        }
        // The timeouts of reqwest's connector and of tonic's channel have no public type, so their texts are compared.
        match cause(error).is_none().then(|| error.to_string())?.as_str() {
            "Timeout expired" => Some(ErrorKind::AttemptTimeout),
            text if self.connecting && text.contains("timed out") => Some(ErrorKind::ConnectTimeout),
            text if is_lasting_tls(text) => self.last_as(ErrorKind::Tls),
            text if is_rejected_by_proxy(text) => self.last_as(ErrorKind::Connect),
            _ => None,
        }
    }
}

/// Returns whether another TLS handshake would fail, too: a certificate is wrong, or client and server share no TLS
/// version or cipher.
#[cfg(feature = "rustls")]
fn is_lasting(error: &rustls::Error) -> bool {
    use rustls::Error::*;
    match error {
        InvalidCertificate(_) | NoCertificatesPresented | PeerIncompatible(_) | NoApplicationProtocol => true,
        AlertReceived(alert) => alert.as_str().is_some_and(is_lasting_alert),
        _ => false,
    }
}

/// What is known about a failure while the errors of its chain are read one by one.
pub(crate) struct Findings {
    /// The kind of the failure. An error deeper in the chain may change it.
    kind: ErrorKind,
    /// Whether the client was still connecting when the request failed.
    connecting: bool,
    proof: Option<Proof>,
    /// The kind, if no error deeper in the chain can change it.
    decided: Option<ErrorKind>,
    /// Whether the failure occurred on the way through a proxy. The errors below it are also read, for the proof.
    is_of_proxy: bool,
    /// Whether every further attempt would fail for the same reason.
    lasting: bool,
}

impl Findings {
    #[cfg(feature = "hyper")]
    pub(crate) fn connect(&mut self) {
        self.connecting = true;
        self.kind = ErrorKind::Connect;
    }

    /// Records the proof of an error, unless an outer error in the chain has already given a proof.
    fn prove(&mut self, proof: Proof) {
        self.proof.get_or_insert(proof);
    }

    /// Records that every further attempt would fail for the same reason. An error below the one that decides the kind
    /// does not count. It may concern another connection, such as the one from which the request's body was read.
    fn last(&mut self) {
        self.lasting |= self.decided.is_none();
    }

    /// Like [`last`](Self::last). Returns the final kind of the failure.
    fn last_as(&mut self, kind: ErrorKind) -> Option<ErrorKind> {
        self.last();
        Some(kind)
    }

    fn io(&self, kind: io::ErrorKind) -> Option<ErrorKind> {
        use io::ErrorKind::*;
        Some(match kind {
            ConnectionRefused => ErrorKind::ConnectRefused,
            // These I/O errors can also end an established connection. The kind is then already `Closed`, and does not
            // change.
            HostUnreachable | NetworkUnreachable | AddrNotAvailable if self.kind != ErrorKind::Closed => {
                ErrorKind::Connect
            }
            ConnectionReset | ConnectionAborted => ErrorKind::Reset,
            TimedOut if self.connecting => ErrorKind::ConnectTimeout,
            // No hyper error wraps this timeout, so it comes from a custom service.
            TimedOut if self.kind == ErrorKind::Other => ErrorKind::AttemptTimeout,
            // Only an established TCP connection can end this way, so it ended during the TLS handshake.
            UnexpectedEof if self.connecting => ErrorKind::Tls,
            // h2 reports a closed connection as a broken pipe.
            BrokenPipe | UnexpectedEof | NotConnected | TimedOut if !self.connecting => ErrorKind::Closed,
            _ => return None,
        })
    }
}

/// Returns whether the resolver states that the name does not exist. Its error has no code, so its text is compared:
/// glibc, musl, macOS and Windows.
fn is_unknown_name(text: &str) -> bool {
    const TEXTS: [&str; 5] = [
        "Name or service not known",
        "No address associated with hostname",
        "Name does not resolve",
        "nodename nor servname provided",
        "No such host is known",
    ];
    TEXTS.iter().any(|unknown| text.contains(unknown))
}

/// hyper-util's text if the SOCKS proxy accepts no method of authentication that the client has offered.
pub(crate) const NO_COMMON_METHOD: &str = "SOCKS error: server does not support user/pass authentication";

/// Returns whether a proxy has rejected the password, or requires one. The types of hyper-util's errors have no public
/// name, so their texts are compared. If hyper-util changes the texts, the call is retried.
pub(crate) fn is_rejected_by_proxy(text: &str) -> bool {
    const TEXTS: [&str; 3] = [
        "tunnel error: proxy authorization required",
        "SOCKS error: credentials not accepted",
        NO_COMMON_METHOD,
    ];
    TEXTS.contains(&text)
}

/// Returns whether another TLS handshake would fail, too: see `is_lasting`. The text comes from OpenSSL below
/// native-tls, from rustls without the feature `rustls` of this crate, or from h2, which drops the error of rustls.
fn is_lasting_tls(text: &str) -> bool {
    // rustls writes `received fatal alert: UnknownCA`, and OpenSSL `tlsv1 alert unknown ca:` and more.
    let is_known = |alert: &str| {
        is_lasting_alert(alert.strip_prefix(": ").unwrap_or(alert).split(':').next().unwrap_or_default())
    };
    text.split("alert").skip(1).any(is_known)
        || text.contains("certificate verify failed")
        || text.contains("invalid peer certificate")
}

/// Returns whether the server rejects the client's certificate, or the name or the versions that the client requested.
fn is_lasting_alert(name: &str) -> bool {
    // The last one: another key has signed the certificate, for example a new authority with an old name.
    const ALERTS: &str = "HandshakeFailure BadCertificate UnsupportedCertificate CertificateRevoked \
        CertificateExpired CertificateUnknown UnknownCA AccessDenied ProtocolVersion InsufficientSecurity \
        UnrecognisedName UnrecognizedName CertificateRequired NoApplicationProtocol DecryptError";
    let name = name.replace(' ', "");
    ALERTS.split(' ').any(|alert| alert.eq_ignore_ascii_case(&name))
}
