use http::StatusCode;

use super::StackBuilder;
use crate::{
    call::RequestHead,
    retry::{AttemptResult, IdempotencyKey},
};

/// Setters of the retry layer. [`with_retry`](Self::with_retry) replaces the whole layer.
impl StackBuilder {
    /// Sets the maximum number of attempts, including the first. The default is 3. See
    /// [`RetryLayer::with_max_attempts`](crate::retry::RetryLayer::with_max_attempts).
    pub fn with_max_attempts(mut self, max_attempts: u32) -> Self {
        match self.retry.clone().with_max_attempts(max_attempts) {
            Ok(retry) => self.retry = retry,
            Err(error) => _ = self.invalid.get_or_insert(error),
        }
        self
    }

    /// Also retries an idempotent request after these statuses, in addition to the default ones: see
    /// [`RetryLayer::retry_on`](crate::retry::RetryLayer::retry_on).
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_outbound::Client;
    ///
    /// let builder = Client::builder("https://api.example.com")?.retry_on([StatusCode::CONFLICT]);
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn retry_on(self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.map_retry(|retry| retry.retry_on(statuses))
    }

    /// Also retries an idempotent request if `condition` returns `true`, even after a 2xx. If it returns `false`, the
    /// other rules apply: see [`RetryLayer::retry_if`](crate::retry::RetryLayer::retry_if).
    ///
    /// A POST is not idempotent, unless [`with_idempotent`](Self::with_idempotent) or
    /// [`RequestBuilder::idempotent`](crate::client::RequestBuilder::idempotent) declares it so.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_outbound::Client;
    ///
    /// let builder = Client::builder("https://api.example.com")?.retry_if(|_request, attempt| {
    ///     attempt.status() == Some(StatusCode::CONFLICT) && attempt.header("x-busy").is_some()
    /// });
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn retry_if(
        self,
        condition: impl Fn(RequestHead<'_>, &AttemptResult<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.map_retry(|retry| retry.retry_if(condition))
    }

    /// Declares requests idempotent regardless of their method, such as a POST that only searches. A later call
    /// replaces the rule: see [`RetryLayer::with_idempotent`](crate::retry::RetryLayer::with_idempotent).
    ///
    /// ```
    /// use tower_outbound::Client;
    ///
    /// let builder = Client::builder("https://api.example.com")?
    ///     .with_idempotent(|request| request.uri.path() == "/v1/searches");
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn with_idempotent(self, rule: impl Fn(RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.map_retry(|retry| retry.with_idempotent(rule))
    }

    /// Adds an idempotency key to each request whose method is not idempotent, and retries the request like an
    /// idempotent one. Use this only if the server honours the key: see
    /// [`RetryLayer::with_honoured_idempotency_key`](crate::retry::RetryLayer::with_honoured_idempotency_key).
    ///
    /// ```
    /// use tower_outbound::{Client, retry::IdempotencyKey};
    ///
    /// let builder = Client::builder("https://api.example.com")?
    ///     .with_honoured_idempotency_key(IdempotencyKey::bare());
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn with_honoured_idempotency_key(self, key: IdempotencyKey) -> Self {
        self.map_retry(|retry| retry.with_honoured_idempotency_key(key))
    }
}
