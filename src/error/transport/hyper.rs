//! Interprets the errors of hyper-util, hyper and h2. reqwest is built on these crates, so its errors contain theirs.

use std::error::Error as StdError;

use http::Uri;
use hyper_util::client::legacy::{self, connect::HttpConnector};

use super::{
    super::{
        ErrorKind,
        chain::chain,
        delivery::{MAYBE, NOT_SENT, Proof},
    },
    Findings, is_lasting_tls, is_unknown_name,
};

/// The error of hyper-util's connector, whose type has no public name. Clients that manage their own connections, such
/// as tonic's channel, wrap this error in their own.
pub(super) type ConnectError = <HttpConnector as tower_service::Service<Uri>>::Error;

impl Findings {
    /// Updates the kind and the proof if `error` comes from hyper-util, hyper, h2 or reqwest. `Some(Some(kind))` means
    /// that the kind is final, and `Some(None)` that an error deeper in the chain can change it. Returns `None` for any
    /// other error.
    pub(super) fn read_hyper_error(&mut self, error: &(dyn StdError + 'static)) -> Option<Option<ErrorKind>> {
        if let Some(error) = error.downcast_ref::<legacy::Error>() {
            return Some(self.client(error));
        }
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            self.prove(by_connection(error, was_not_begun(error)));
            return Some(self.connection(error));
        }
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            self.prove(by_stream(error));
            return Some(self.http2(error));
        }
        if error.is::<ConnectError>() {
            self.prove(NOT_SENT);
            self.connect();
            // The fields of the error are private, so its text is compared. If hyper-util changes the text, the kind
            // stays `Connect`.
            let is_dns = error.to_string() == "dns error";
            if is_dns && chain(error).any(|error| is_unknown_name(&error.to_string())) {
                self.last();
            }
            return Some(is_dns.then_some(ErrorKind::Dns));
        }
        #[cfg(feature = "reqwest")]
        if let Some(kind) = self.read_reqwest_error(error) {
            return Some(kind);
        }
        None
    }

    /// Interprets the error of hyper-util's client. If the error occurred on a connection, it contains that
    /// connection's info. If it contains none, connecting, TLS or the HTTP/2 handshake failed, and the request was not
    /// sent.
    fn client(&mut self, error: &legacy::Error) -> Option<ErrorKind> {
        // The client itself rejected the request. The kinds of such errors have no public name, so the text is
        // compared. If hyper-util changes the text, the checks below apply.
        if error.to_string().starts_with("client error (User") {
            self.prove(NOT_SENT);
            return Some(ErrorKind::InvalidRequest);
        }
        if error.is_connect() {
            self.connect();
        } else {
            self.kind = ErrorKind::Closed;
        }
        self.prove(match error.source().and_then(|error| error.downcast_ref::<hyper::Error>()) {
            _ if error.is_connect() || error.connect_info().is_none() => NOT_SENT,
            // hyper also reports a cancelled upgrade as canceled, but this client never waits for an upgrade.
            Some(error) => by_connection(error, error.is_canceled()),
            None => MAYBE,
        });
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
        // The server has not responded to an HTTP/2 ping.
        if error.is_timeout() {
            self.kind = ErrorKind::Closed;
            return None;
        }
        // hyper has no method that identifies the error for an unexpected message, and this error has no cause.
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
                // h2 keeps only the text of the TLS library's error.
                if is_lasting_tls(&error.to_string()) {
                    self.last();
                    self.kind = ErrorKind::Tls;
                }
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
}

fn by_connection(error: &hyper::Error, unbegun: bool) -> Proof {
    match error.source().and_then(|error| error.downcast_ref()) {
        _ if unbegun => NOT_SENT,
        // Either hyper's task ended without a result, or the request's body failed with its own error. That error may
        // concern another connection.
        _ if error.is_user() => MAYBE,
        Some(error) => by_stream(error),
        // The connection was closed or reset. HTTP/1.1 does not show whether the server had read the request before.
        None => MAYBE,
    }
}

/// Interprets an HTTP/2 error. A server that resets a stream with REFUSED_STREAM guarantees that it did not process the
/// request (RFC 9113 §8.7). A REFUSED_STREAM that h2 itself created guarantees nothing.
///
/// A GOAWAY error proves nothing. A GOAWAY frame contains the id of the last stream that the server may have processed.
/// h2 returns a GOAWAY error for all later streams, but does not expose that id. hyper also returns this error for an
/// earlier stream, if another thread read the GOAWAY while the request was queued. h2's task may still send that
/// request before it resets the stream.
fn by_stream(error: &h2::Error) -> Proof {
    let refused = error.is_remote() && error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    if refused { NOT_SENT } else { MAYBE }
}

/// Returns `true` if hyper canceled the request before writing it, or if it found the connection closed. hyper checks
/// for a closed connection only in `poll_ready`. This function is for hyper's own connections, without hyper-util's
/// client.
///
/// hyper also returns a canceled error if it cancels an upgrade after the response. The cause of that error has no
/// public type, so the texts of the causes are compared. If hyper changes these texts, the result is "maybe processed".
fn was_not_begun(error: &hyper::Error) -> bool {
    if error.is_closed() {
        return true;
    }
    let why = error.source().filter(|_| error.is_canceled());
    why.is_some_and(|why| {
        why.is::<hyper::Error>()
            || ["connection closed", "connection was not ready"].contains(&why.to_string().as_str())
    })
}
