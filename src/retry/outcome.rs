//! Reads the outcome of an attempt from its error.

use super::delivery::proof;
use crate::{
    call::{Delivery, Outcome},
    error::{Error, Kind, Scope},
};

/// Returns the outcome of an attempt without a response.
///
/// `called` is `false` if the inner service did not become ready. `body_failed` is `true` if the request's body failed.
pub(super) fn of_error(error: &Error, called: bool, body_failed: bool) -> Outcome {
    match error.failure() {
        Kind::Timeout { .. } | Kind::Stalled { .. } => Outcome::Timeout,
        // A retry layer below made several attempts.
        _ if error.is_after_processing() => Outcome::Failed,
        Kind::RateLimited { .. } | Kind::TooCostly => Outcome::Refused,
        // The error of a failed body may be about another connection.
        Kind::Service if called && (body_failed || proof(error).delivery != Delivery::NotSent) => {
            Outcome::Failed
        }
        _ => Outcome::NotSent,
    }
}

/// Returns whether the next attempt would fail in the same way, because another layer of this crate returned the error
/// or the server's certificate is wrong.
pub(super) fn is_lasting(error: &Error) -> bool {
    match error.failure() {
        Kind::Timeout { scope: Scope::Attempt, .. } | Kind::Stalled { .. } | Kind::NotReady => false,
        Kind::Service => proof(error).lasting,
        _ => true,
    }
}
