//! What an attempt came to, read off its answer or its error. The rules over it are pure:
//! [`policy::classify`](crate::policy::classify).

use http::StatusCode;

use crate::{
    call,
    error::{Error, Kind, Scope},
    policy,
};

use super::sent::{Sent, sent};

/// The outcome as the report tells it, and as the policy judges it.
pub(super) fn of_answer(status: StatusCode) -> (call::Outcome, policy::Outcome) {
    (call::Outcome::Answer(status), policy::Outcome::Answer(status))
}

/// `called` tells whether the inner service was called, or failed before it was ready to be.
pub(super) fn of_error(error: &Error, called: bool) -> (call::Outcome, policy::Outcome) {
    match error.kind() {
        Kind::RateLimited { .. } | Kind::TooCostly => (call::Outcome::Refused, policy::Outcome::Fatal),
        Kind::Auth | Kind::Request => (call::Outcome::NotSent, policy::Outcome::Fatal),
        Kind::Timeout { scope: Scope::Call, .. } => (call::Outcome::Timeout, policy::Outcome::Fatal),
        Kind::Timeout { scope: Scope::Attempt, .. } => {
            (call::Outcome::Timeout, policy::Outcome::Failure(policy::Sent::Maybe))
        }
        Kind::Service => match sent(error) {
            Sent::Never => (call::Outcome::NotSent, policy::Outcome::Fatal),
            Sent::Maybe if called => (call::Outcome::Failed, policy::Outcome::Failure(policy::Sent::Maybe)),
            Sent::Maybe | Sent::No => (call::Outcome::NotSent, policy::Outcome::Failure(policy::Sent::No)),
        },
    }
}
