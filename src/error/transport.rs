//! Finds the kind of a transport failure in the chain of its causes.

use std::{error::Error as StdError, io};

use http::Uri;
use hyper_util::client::legacy::{self, connect::HttpConnector};
use tower::load_shed::error::Overloaded;

use super::{
    ErrorKind,
    chain::{cause, chain},
    redacted::Redacted,
};

/// The error of hyper-util's connector, which has no public name. Clients that manage their own connections, such as
/// tonic's channel, wrap it in their error.
pub(crate) type ConnectError = <HttpConnector as tower_service::Service<Uri>>::Error;

/// Returns whether hyper-util's client rejected the request itself. The kinds have no public name, so the text decides.
pub(crate) fn is_rejected(error: &legacy::Error) -> bool {
    error.to_string().starts_with("client error (User")
}

/// Returns the kind of a transport failure, or [`ErrorKind::Other`].
///
/// The deepest known error decides. Causes of a request body's error are skipped, because they may be about another
/// connection. `own` recognizes the errors of this crate.
pub(super) fn kind(
    error: &(dyn StdError + 'static),
    own: impl Fn(&(dyn StdError + 'static)) -> Option<ErrorKind>,
) -> ErrorKind {
    let mut found = Found { kind: ErrorKind::Other, connecting: false };
    for error in chain(error) {
        if let Some(kind) = own(error).or_else(|| found.look(error)) {
            return kind;
        }
    }
    found.kind
}

struct Found {
    /// The kind, unless a deeper error is known.
    kind: ErrorKind,
    /// Whether the connection was still being made.
    connecting: bool,
}

impl Found {
    /// Updates the kind by one error. Returns it if no deeper error can change it.
    fn look(&mut self, error: &(dyn StdError + 'static)) -> Option<ErrorKind> {
        if let Some(error) = error.downcast_ref::<legacy::Error>() {
            return self.client(error);
        }
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            return self.connection(error);
        }
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return self.http2(error);
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            self.kind = self.io(error.kind()).unwrap_or(self.kind);
            return None;
        }
        if error.is::<ConnectError>() {
            // Its fields are private, so the text decides. `Connect` stays for an unknown text.
            if error.to_string() == "dns error" {
                return Some(ErrorKind::Dns);
            }
            self.connect();
            return None;
        }
        if let Some(error) = error.downcast_ref::<Redacted>() {
            return Some(error.kind());
        }
        if error.is::<Overloaded>() {
            return Some(ErrorKind::NotReady);
        }
        if error.is::<tokio::time::error::Elapsed>() || error.is::<tower::timeout::error::Elapsed>() {
            return Some(if self.connecting { ErrorKind::ConnectTimeout } else { ErrorKind::AttemptTimeout });
        }
        #[cfg(feature = "rustls")]
        if error.is::<rustls::Error>() {
            return Some(ErrorKind::Tls);
        }
        #[cfg(feature = "reqwest")]
        if let Some(error) = error.downcast_ref::<reqwest::Error>() {
            return self.reqwest(error);
        }
        // The timeouts of reqwest around a connector and of tonic's channel are read by their texts.
        match cause(error).is_none().then(|| error.to_string())?.as_str() {
            "Timeout expired" => Some(ErrorKind::AttemptTimeout),
            text if self.connecting && text.contains("timed out") => Some(ErrorKind::ConnectTimeout),
            _ => None,
        }
    }

    fn connect(&mut self) {
        self.connecting = true;
        self.kind = ErrorKind::Connect;
    }

    fn client(&mut self, error: &legacy::Error) -> Option<ErrorKind> {
        if error.is_connect() {
            self.connect();
        } else if is_rejected(error) {
            return Some(ErrorKind::InvalidRequest);
        } else {
            self.kind = ErrorKind::Closed;
        }
        None
    }

    fn connection(&mut self, error: &hyper::Error) -> Option<ErrorKind> {
        if error.is_user() {
            return Some(match error.source().is_some() || error.is_body_write_aborted() {
                // hyper drops its task and the connection when the runtime ends or the task panics.
                true if error.to_string() == "dispatch task is gone" => ErrorKind::Closed,
                true => ErrorKind::Body,
                // hyper rejected the request's head.
                false => ErrorKind::InvalidRequest,
            });
        }
        if error.is_parse() {
            return Some(ErrorKind::Protocol);
        }
        // hyper's error for an unexpected message has neither a cause nor a predicate.
        let ended = error.is_incomplete_message() || error.is_closed() || error.is_canceled();
        let unexpected = !ended && error.source().is_none();
        self.kind = if unexpected { ErrorKind::Protocol } else { ErrorKind::Closed };
        None
    }

    fn http2(&mut self, error: &h2::Error) -> Option<ErrorKind> {
        match error.get_io() {
            Some(error) => {
                self.kind = ErrorKind::Closed;
                self.kind = self.io(error.kind()).unwrap_or(self.kind);
            }
            None if error.is_remote() && error.is_reset() => self.kind = ErrorKind::Reset,
            None if error.is_remote() => self.kind = ErrorKind::Closed,
            None if error.is_library() => self.kind = ErrorKind::Protocol,
            // hyper resets the stream of a request whose body failed.
            None if error.is_reset() => self.kind = ErrorKind::Body,
            // h2 rejected the request's head.
            None if error.reason().is_none() => self.kind = ErrorKind::InvalidRequest,
            None => {}
        }
        Some(self.kind)
    }

    fn io(&self, kind: io::ErrorKind) -> Option<ErrorKind> {
        use io::ErrorKind::*;
        Some(match kind {
            ConnectionRefused => ErrorKind::ConnectRefused,
            // They also end an established connection, whose error is `Closed` so far.
            HostUnreachable | NetworkUnreachable | AddrNotAvailable if self.kind != ErrorKind::Closed => {
                ErrorKind::Connect
            }
            ConnectionReset | ConnectionAborted => ErrorKind::Reset,
            TimedOut if self.connecting => ErrorKind::ConnectTimeout,
            // Without an error of hyper above it: the timeout of a custom service.
            TimedOut if self.kind == ErrorKind::Other => ErrorKind::AttemptTimeout,
            // TCP is established by then, so the connection ended during the handshake.
            UnexpectedEof if self.connecting => ErrorKind::Tls,
            // h2 reports the end of a connection as a broken pipe.
            BrokenPipe | UnexpectedEof | NotConnected | TimedOut if !self.connecting => ErrorKind::Closed,
            _ => return None,
        })
    }

    #[cfg(feature = "reqwest")]
    fn reqwest(&mut self, error: &reqwest::Error) -> Option<ErrorKind> {
        let client = error.source().is_some_and(|source| source.is::<legacy::Error>());
        if error.is_body() {
            return Some(ErrorKind::Body);
        }
        if error.is_timeout() && !client {
            return Some(ErrorKind::AttemptTimeout);
        }
        if error.is_connect() {
            self.connect();
        }
        None
    }
}
