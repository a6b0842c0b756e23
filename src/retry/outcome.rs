//! Reads the outcome of an attempt from its error.

use super::sent::proof;
use crate::{
    call,
    error::{Error, Kind, Scope},
    policy::Delivery,
};

/// Returns the outcome for the report, and how far the request got.
///
/// `called` is `false` if the inner service did not become ready. `body_failed` is `true` if the request's body failed.
pub(super) fn of_error(error: &Error, called: bool, body_failed: bool) -> (call::Outcome, Delivery) {
    let delivery = match error.failure() {
        Kind::RateLimited { .. } | Kind::TooCostly => return (call::Outcome::Refused, Delivery::NotSent),
        Kind::Timeout { .. } => return (call::Outcome::Timeout, Delivery::MaybeProcessed),
        // The error may be the body's own, about another connection.
        Kind::Service if called && body_failed => Delivery::MaybeProcessed,
        Kind::Service if called => proof(error).delivery,
        Kind::Service | Kind::NotReady | Kind::Auth { .. } | Kind::Request => Delivery::NotSent,
    };
    let outcome = match delivery {
        Delivery::NotSent => call::Outcome::NotSent,
        Delivery::MaybeProcessed => call::Outcome::Failed,
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
