//! What errors of hyper-util, hyper and h2 prove.

use std::error::Error as StdError;

use hyper_util::client::legacy;

use super::proof::{MAYBE, NOT_SENT, Proof};
#[cfg(feature = "rustls")]
use crate::error::chain;
use crate::error::{ConnectError, is_rejected};

/// Returns what a transport error proves, or `None` for any other error.
pub(super) fn proof(error: &(dyn StdError + 'static)) -> Option<Proof> {
    if let Some(error) = error.downcast_ref() {
        return Some(by_client(error));
    }
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return Some(by_connection(error, was_not_begun(error)));
    }
    if let Some(error) = error.downcast_ref() {
        return Some(by_stream(error));
    }
    error.is::<ConnectError>().then_some(NOT_SENT)
}

/// Reads the error of hyper-util's client, which names the connection that the error occurred on. Without one, the
/// client never had a connection for the request, because connecting, TLS or the HTTP/2 handshake failed.
fn by_client(error: &legacy::Error) -> Proof {
    // If the text of hyper-util changes, the checks below decide.
    if is_rejected(error) {
        return Proof { lasting: true, ..NOT_SENT };
    }
    if error.is_connect() || error.connect_info().is_none() {
        return Proof { lasting: is_permanent(error), ..NOT_SENT };
    }
    match error.source().and_then(|error| error.downcast_ref::<hyper::Error>()) {
        // hyper also reports an upgrade as canceled, but this client waits for none.
        Some(error) => by_connection(error, error.is_canceled()),
        None => MAYBE,
    }
}

fn by_connection(error: &hyper::Error, unbegun: bool) -> Proof {
    match error.source().and_then(|error| error.downcast_ref()) {
        _ if unbegun => NOT_SENT,
        // The body failed with its own error, which is about something else, or hyper's task ended without a result.
        _ if error.is_user() => MAYBE,
        Some(error) => by_stream(error),
        // Closed or reset, perhaps after the server read the request. HTTP/1.1 does not show the difference.
        None => MAYBE,
    }
}

/// Reads an HTTP/2 error. A server that resets a stream with REFUSED_STREAM states that it did not process the request
/// (RFC 9113 §8.7). A REFUSED_STREAM of h2 itself states nothing.
///
/// GOAWAY proves nothing. The server did not process streams above the last id, and h2 returns its error for those.
/// However, h2 does not expose the id. hyper returns the same error for a request below it, if another thread read the
/// GOAWAY while the request was queued. h2's task may still send that request before it resets the stream.
fn by_stream(error: &h2::Error) -> Proof {
    let refused = error.is_remote() && error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    if refused { NOT_SENT } else { MAYBE }
}

/// Returns whether hyper, without hyper-util's client, returned the request unwritten or found its connection closed.
/// hyper checks for a closed connection only in `poll_ready`.
///
/// hyper also cancels an upgrade, after the response. The error for that has no public type, so the texts of the other
/// causes decide. If they change, the result is "maybe processed".
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

/// Returns whether TLS fails in the same way on the next attempt: by a wrong certificate, or without a common version
/// or cipher. The caller should learn at once that it may be talking to another server.
#[cfg(feature = "rustls")]
fn is_permanent(error: &legacy::Error) -> bool {
    use rustls::Error::{InvalidCertificate, NoCertificatesPresented, PeerIncompatible};

    let tls = chain(error).find_map(|error| error.downcast_ref());
    matches!(tls, Some(InvalidCertificate(_) | NoCertificatesPresented | PeerIncompatible(_)))
}

#[cfg(not(feature = "rustls"))]
fn is_permanent(_: &legacy::Error) -> bool {
    false
}
