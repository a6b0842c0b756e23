use super::{Failed, call::Error};

impl Error {
    /// Returns whether the server may have processed the request. Returns `false` only if the call proves that the
    /// server processed no attempt. Check it before you send a payment again in another call.
    ///
    /// The result is `true` if it is `true` for at least one attempt, even if a later attempt was not sent:
    ///
    /// | how an attempt ended | may have been processed |
    /// |---|---|
    /// | `RateLimited`, `TooCostly`, `Auth` | no |
    /// | `NotReady`, `CircuitOpen`, `InvalidRequest` | no, if this crate or the service itself returned the error; yes inside another error |
    /// | `Dns`, `ConnectRefused`, `ConnectTimeout`, `Connect`, `Tls` | no, if the error [proves](crate::retry#notes) that there was no connection. The errors of [`Client`](crate::Client), hyper-util and reqwest do |
    /// | `AttemptTimeout`, `Deadline` | no, if the attempt waited for a connection, or if the deadline passed before it; otherwise yes |
    /// | `Reset`, `Closed`, `Protocol`, `Body`, `Other` | yes, unless the error [proves](crate::retry#notes) that the request was not sent |
    /// | `BodyTimeout`, a response body that broke | yes |
    /// | a [rejected](crate::call::Delivery#rejected-requests) request, such as a 429 | no |
    /// | any other response, such as a 401 or a 500 | yes |
    /// | the caller dropped it, or it ended together with the call | yes |
    ///
    /// ```
    /// use tower_outbound::Error;
    ///
    /// /// Returns whether a payment may be sent again with another idempotency key.
    /// fn may_repeat(error: &Error) -> bool {
    ///     !error.may_have_been_processed()
    /// }
    /// # let _ = may_repeat;
    /// ```
    ///
    /// # Notes
    ///
    /// - The result covers all requests that the outer layers of a client send for the call, such as the hops of a
    ///   redirect.
    /// - Without the retry layer of this crate, the result depends on the last error alone. It then does not cover the
    ///   earlier attempts of another retry layer.
    pub fn may_have_been_processed(&self) -> bool {
        let own = match self.failed() {
            Failed::Layer => self.is_timeout(),
            Failed::Unsent | Failed::Readiness => false,
            Failed::Service(proof) => !proof.not_sent,
        };
        self.is_after_processing() || self.report().map_or(own, |report| report.was_processed(own))
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use super::*;
    use crate::error::{DeliveryError, ErrorKind, Reason, Refusal};

    /// What an error proves: whether the server may have processed the request, whether no attempt was sent, whether
    /// the inner service was not called, and whether the service failed below the layers.
    fn facts(error: &Error) -> [bool; 4] {
        [error.may_have_been_processed(), error.proves_not_sent(), error.was_not_called(), error.is_service()]
    }

    #[test]
    fn each_error_proves_the_delivery_unless_an_earlier_attempt_was_processed() {
        let own = |kind| Error::new(kind, Some(Duration::from_secs(1)), None);
        let refused = |reason| Error::refused(Refusal::new(reason, None));
        let not_connected = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let open = || DeliveryError::circuit_open("too many failures");
        for (name, error, expected) in [
            ("refused", refused(Reason::QueueFull), [false, false, true, false]),
            ("too costly", refused(Reason::TooCostly { largest: 1 }), [false, false, true, false]),
            ("no key", own(ErrorKind::Auth), [false, false, false, false]),
            ("invalid request", Error::invalid_request("path"), [false, false, false, false]),
            ("no response in time", own(ErrorKind::AttemptTimeout), [true, false, false, false]),
            ("deadline", own(ErrorKind::Deadline), [true, false, false, false]),
            ("stalled body", own(ErrorKind::BodyTimeout), [true, false, false, false]),
            ("deadline before an attempt", own(ErrorKind::Deadline).not_sent(), [false, true, false, false]),
            (
                "no connection in time",
                Error::not_connected_within(Duration::ZERO),
                [false, true, false, true],
            ),
            ("not ready", Error::from_readiness("text"), [false, false, true, true]),
            (
                "not ready: own error",
                Error::from_readiness(own(ErrorKind::Auth)),
                [false, false, false, false],
            ),
            ("not ready: open breaker", Error::from_readiness(open()), [false, true, false, true]),
            ("open breaker", Error::from_service(open()), [false, true, false, true]),
            ("not connected", Error::from_service(not_connected()), [false, true, false, true]),
            ("unknown", Error::from_service("text"), [true, false, false, true]),
        ] {
            assert_eq!(facts(&error), expected, "{name}");
            let mut error = error;
            error.set_after_processing();
            assert_eq!(facts(&error), [true, false, false, expected[3]], "{name}, after another attempt");
        }
    }
}
