//! What an attempt came to, read off its error.

use super::sent::{self, sent};
use crate::{
    call,
    error::{Error, Kind, Scope},
    policy::Sent,
};

/// The outcome as the report tells it, and how far the request got. `called` tells whether the inner service was
/// called, or failed before it was ready to be; `body_failed` whether the request's own body did.
pub(super) fn of_error(error: &Error, called: bool, body_failed: bool) -> (call::Outcome, Sent) {
    match error.failure() {
        // The error may be the body's, of the connection that it comes over: no proof for the one that it goes over.
        Kind::Service if called && body_failed => (call::Outcome::Failed, Sent::Maybe),
        Kind::RateLimited { .. } | Kind::TooCostly => (call::Outcome::Refused, Sent::No),
        Kind::Auth { .. } | Kind::Request => (call::Outcome::NotSent, Sent::No),
        Kind::Timeout { .. } => (call::Outcome::Timeout, Sent::Maybe),
        Kind::Service if called && matches!(sent(error), sent::Sent::Maybe | sent::Sent::Done) => {
            (call::Outcome::Failed, Sent::Maybe)
        }
        Kind::Service | Kind::NotReady => (call::Outcome::NotSent, Sent::No),
    }
}

/// Whether the next attempt would meet it, too: one of our layers has said no, or a server has shown the wrong
/// certificate.
pub(super) fn is_lasting(error: &Error) -> bool {
    match error.failure() {
        Kind::Timeout { scope: Scope::Attempt, .. } | Kind::NotReady => false,
        Kind::Service => matches!(sent(error), sent::Sent::Never | sent::Sent::Done),
        _ => true,
    }
}
