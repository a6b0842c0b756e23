//! What an attempt came to, read off its answer or its error. The rules over it are pure:
//! [`policy::classify`](crate::policy::classify).

use std::{error::Error as StdError, io};

use http::StatusCode;

use crate::{
    call,
    error::{Error, Kind, Scope},
    policy::{self, Sent},
};

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
            (call::Outcome::Timeout, policy::Outcome::Failure(Sent::Maybe))
        }
        Kind::Service if called && sent(error) == Sent::Maybe => {
            (call::Outcome::Failed, policy::Outcome::Failure(Sent::Maybe))
        }
        Kind::Service => (call::Outcome::NotSent, policy::Outcome::Failure(Sent::No)),
    }
}

/// Whether anything can have reached the server. In doubt it has.
fn sent(error: &Error) -> Sent {
    let mut cause: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(error) = cause {
        let unsent = error
            .downcast_ref::<hyper_util::client::legacy::Error>()
            .is_some_and(hyper_util::client::legacy::Error::is_connect)
            || error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled)
            || error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if unsent {
            return Sent::No;
        }
        cause = error.source();
    }
    Sent::Maybe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_connection_was_not_sent_and_a_reset_one_may_have_been() {
        for (kind, expected) in [
            (io::ErrorKind::ConnectionRefused, Sent::No),
            (io::ErrorKind::ConnectionReset, Sent::Maybe),
            (io::ErrorKind::BrokenPipe, Sent::Maybe),
        ] {
            assert_eq!(sent(&Error::from_service(io::Error::from(kind))), expected, "{kind}");
        }
    }
}
