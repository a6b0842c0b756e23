//! Reads the errors of hyper-util, hyper and h2, and of reqwest, which is built on them.

use std::error::Error as StdError;

use http::Uri;
use hyper_util::client::legacy::{self, connect::HttpConnector};

use super::{super::ErrorKind, found::Found};

/// The error of hyper-util's connector, which has no public name. Clients that manage their own connections, such as
/// tonic's channel, wrap it in their error.
pub(crate) type ConnectError = <HttpConnector as tower_service::Service<Uri>>::Error;

/// Returns whether hyper-util's client rejected the request itself. The kinds have no public name, so the text decides.
pub(crate) fn is_rejected(error: &legacy::Error) -> bool {
    error.to_string().starts_with("client error (User")
}

impl Found {
    /// Updates the kind by an error of these crates, and returns it if no deeper error can change it. Returns `None` for
    /// any other error.
    pub(super) fn look_at_hyper(&mut self, error: &(dyn StdError + 'static)) -> Option<Option<ErrorKind>> {
        if let Some(error) = error.downcast_ref::<legacy::Error>() {
            return Some(self.client(error));
        }
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            return Some(self.connection(error));
        }
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return Some(self.http2(error));
        }
        if error.is::<ConnectError>() {
            self.connect();
            // Its fields are private, so the text decides. `Connect` stays for an unknown text.
            return Some((error.to_string() == "dns error").then_some(ErrorKind::Dns));
        }
        #[cfg(feature = "reqwest")]
        if let Some(error) = error.downcast_ref::<reqwest::Error>() {
            return Some(self.reqwest(error));
        }
        None
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
