//! Reads the outcome of an attempt from its error.

use crate::{
    call::Outcome,
    error::{Error, Failed},
};

/// Returns the outcome of an attempt without a response.
///
/// `called` is `false` if the inner service did not become ready. `body_failed` is `true` if the request's body failed.
pub(super) fn of_error(error: &Error, called: bool, body_failed: bool) -> Outcome {
    match error.failed() {
        _ if error.is_timeout() => Outcome::Timeout,
        // A retry layer below made several attempts.
        _ if error.is_after_processing() => Outcome::Failed,
        _ if error.is_refusal() => Outcome::Refused,
        // The error of a failed body may be about another connection.
        Failed::Service(proof) if called && (body_failed || !proof.not_sent) => Outcome::Failed,
        _ => Outcome::NotSent,
    }
}

/// Returns whether the next attempt would fail in the same way, because another layer of this crate returned the error
/// or the server's certificate is wrong.
pub(super) fn is_lasting(error: &Error) -> bool {
    match error.failed() {
        Failed::Layer => !error.is_timeout() || error.is_deadline(),
        Failed::Readiness => false,
        Failed::Service(proof) => proof.lasting,
    }
}
