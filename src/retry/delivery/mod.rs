//! Reads from the error of an attempt whether the server may have processed the request.
//!
//! The first transport error or [`DeliveryError`] in the chain of sources decides. Errors below it may be about another
//! connection, for example the one that the request's body was read from. Without either, the request counts as
//! [`Delivery::MaybeProcessed`](crate::policy::Delivery). Callers skip this check if the request's body failed, because an
//! unknown client may return the body's error as its own.
//!
//! | error | delivery |
//! |---|---|
//! | the service's own `DeliveryError::not_sent`, `ConnectionRefused`, or tower's `Overloaded` | not sent |
//! | hyper-util's client: no connection was made, for whatever reason | not sent |
//! | hyper-util's `HttpConnector`, also inside the error of another client | not sent |
//! | hyper: canceled before the request was written, or the connection was closed before | not sent |
//! | h2: the server reset the stream with `REFUSED_STREAM` (RFC 9113 §8.7) | not sent |
//! | `HostUnreachable`, `NetworkUnreachable` or `AddrNotAvailable` without one of the connect errors above | maybe processed |
//! | GOAWAY, a reset connection, a body that failed, and any other error | maybe processed |
//!
//! Without the feature `hyper`, only the first row is "not sent".

mod proof;
#[cfg(test)]
mod tests;
#[cfg(feature = "hyper")]
mod transport;

use std::{error::Error as StdError, io};

use tower::load_shed::error::Overloaded;

use self::proof::{MAYBE, NOT_SENT, Proof};
use crate::error::{DeliveryError, Error, chain};

/// Returns what the error of the inner service proves.
pub(super) fn proof(error: &Error) -> Proof {
    let first = error.original();
    if first.is_some_and(states_not_sent) {
        return NOT_SENT;
    }
    for error in first.into_iter().flat_map(chain) {
        // Of a retry layer below, which made several attempts.
        if error.downcast_ref().is_some_and(Error::is_after_processing) {
            return MAYBE;
        }
        if let Some(error) = error.downcast_ref::<DeliveryError>() {
            return Proof { lasting: error.is_lasting(), ..MAYBE };
        }
        #[cfg(feature = "hyper")]
        if let Some(proof) = transport::proof(error) {
            return proof;
        }
    }
    MAYBE
}

/// Returns whether the service itself states that nothing was sent. Inside another error each of these may be about
/// another connection or request, for example the one that the request's body was read from.
fn states_not_sent(error: &(dyn StdError + 'static)) -> bool {
    // Established TCP connections never fail with this kind. The other kinds of failed connects occur on them, too.
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    // A service may wrap its statement in it.
    let marked = || chain(error).any(|error| error.is::<DeliveryError>());
    error.downcast_ref().is_some_and(refused) && !marked()
        || error.downcast_ref().is_some_and(DeliveryError::is_not_sent)
        // tower's `LoadShed` returns it instead of calling its service.
        || error.is::<Overloaded>()
}
