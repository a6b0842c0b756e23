//! Reads the outcome of an attempt from its error.

use super::delivery::proof;
use crate::{
    call,
    error::{Error, Kind, Scope},
    policy::Delivery,
};

/// Returns the outcome for the report, and how far the request got.
///
/// `called` is `false` if the inner service did not become ready. `body_failed` is `true` if the request's body failed.
pub(super) fn of_error(error: &Error, called: bool, body_failed: bool) -> (call::Outcome, Delivery) {
    let kind = error.failure();
    let proven = match kind {
        // A retry layer below made several attempts.
        _ if error.is_after_processing() => false,
        Kind::Timeout { .. } => false,
        // The error may be the body's own, about another connection.
        Kind::Service if called => !body_failed && proof(error).delivery == Delivery::NotSent,
        _ => true,
    };
    let delivery = if proven { Delivery::NotSent } else { Delivery::MaybeProcessed };
    let outcome = match kind {
        Kind::RateLimited { .. } | Kind::TooCostly => call::Outcome::Refused,
        Kind::Timeout { .. } => call::Outcome::Timeout,
        _ if proven => call::Outcome::NotSent,
        _ => call::Outcome::Failed,
    };
    (outcome, delivery)
}

/// Returns whether the next attempt would fail in the same way, because another layer of this crate returned the error
/// or the server's certificate is wrong.
pub(super) fn is_lasting(error: &Error) -> bool {
    match error.failure() {
        Kind::Timeout { scope: Scope::Attempt, .. } | Kind::NotReady => false,
        Kind::Service => proof(error).lasting,
        _ => true,
    }
}
