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
            Failed::Layer => self.is_timeout() && !self.is_not_sent(),
            Failed::Readiness => false,
            Failed::Service(proof) => !proof.not_sent,
        };
        self.is_after_processing() || self.report().map_or(own, |report| report.was_processed(own))
    }
}
