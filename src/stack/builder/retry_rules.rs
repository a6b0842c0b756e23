use http::StatusCode;

use super::StackBuilder;
use crate::{call::RequestHead, retry::AttemptResult};

/// Rules that are evaluated before the classifier of the retry layer, in the reverse order of their addition.
impl StackBuilder {
    /// Also retries after this status: see [`RetryLayer::retry_on`](crate::retry::RetryLayer::retry_on).
    pub fn retry_on(self, status: StatusCode) -> Self {
        self.map_retry(|retry| retry.retry_on(status))
    }

    /// Also retries if `condition` returns `true`: see [`RetryLayer::retry_if`](crate::retry::RetryLayer::retry_if).
    ///
    /// ```
    /// use tower_outbound::preset;
    ///
    /// let rates = preset::currency_rates("https://rates.example.com")?.retry_if(|request, attempt| {
    ///     request.uri.path() == "/v1/jobs" && attempt.outcome.status().is_some_and(|status| status == 409)
    /// });
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn retry_if(
        self,
        condition: impl Fn(RequestHead<'_>, &AttemptResult<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.map_retry(|retry| retry.retry_if(condition))
    }
}
