//! The time limits of one request.

use std::time::Duration;

use super::request::RequestBuilder;
use crate::{error::Error, timeout::AttemptTimeoutOverride};

/// Setters of the time limits, which replace those of the client for this request, whether they are longer or shorter.
/// See [time limits of one call](crate::guide::timeouts#time-limits-of-one-call).
impl RequestBuilder {
    /// Limits the time of this call, counted from `.await` or [`send`](Self::send). The limit covers queueing, attempts
    /// and backoff until the response headers arrive. It also covers reading the body with the methods of
    /// [`Response`](super::Response).
    ///
    /// A [`Deadline`](crate::call::Deadline) in the extensions still applies if it is earlier. The [attempt
    /// timeout](Self::attempt_timeout), 10 s by default, still limits each attempt, but [not a long
    /// upload](crate::guide::uploads_downloads#upload).
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Limits the time of each attempt of this request, for one slow endpoint of a service whose other endpoints are
    /// fast. A limit of zero is invalid. The total timeout of the client or [`timeout`](Self::timeout) still limits the
    /// call.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # async fn call(client: tower_outbound::Client) -> Result<(), tower_outbound::Error> {
    /// client.get("/export").attempt_timeout(Duration::from_secs(45)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn attempt_timeout(self, limit: Duration) -> Self {
        self.change(|_, request| {
            let limit = AttemptTimeoutOverride::new(limit).map_err(Error::invalid_request)?;
            request.extensions_mut().insert(limit);
            Ok(())
        })
    }
}
