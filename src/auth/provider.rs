use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use super::ApiKey;
use crate::{
    error::{BoxError, InvalidConfig},
    policy::ExponentialBackoff,
};

/// Fetches a key: from a vault, or by OAuth 2's client credentials. A closure that returns a future is one, too.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{ApiKey, BoxError, auth::{FreshKey, KeySource, RefreshingKey}};
///
/// let keys = KeySource::from(RefreshingKey::new(|| async {
///     // Ask the token endpoint, with a client of its own and not with the one that this key is for.
///     let (token, expires_in) = ("t0ken", 3_600);
///     Ok::<_, BoxError>(FreshKey::new(ApiKey::new(token)?).with_lifetime(Duration::from_secs(expires_in)))
/// }));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not provide keys",
    label = "not a `KeyProvider`",
    note = "an async closure is one: `|| async {{ Ok::<_, BoxError>(FreshKey::new(ApiKey::new(token)?)) }}`"
)]
pub trait KeyProvider: Send + Sync {
    /// Begins to fetch a key. There is one such future at a time, in a task of its own. An error must not contain the
    /// key.
    fn fetch(&self) -> KeyFuture;
}

/// What a [`KeyProvider`] returns.
pub type KeyFuture = Pin<Box<dyn Future<Output = Result<FreshKey, BoxError>> + Send>>;

impl<F, Fut, E> KeyProvider for F
where
    F: Fn() -> Fut + Send + Sync,
    Fut: Future<Output = Result<FreshKey, E>> + Send + 'static,
    E: Into<BoxError>,
{
    fn fetch(&self) -> KeyFuture {
        let fetched = self();
        Box::pin(async move { fetched.await.map_err(Into::into) })
    }
}

/// A key that a provider has just got.
#[derive(Debug, Clone)]
pub struct FreshKey {
    pub(super) key: ApiKey,
    pub(super) lifetime: Option<Duration>,
}

impl FreshKey {
    /// One that is good until the server refuses it.
    pub fn new(key: ApiKey) -> Self {
        Self { key, lifetime: None }
    }

    /// How long it is good, counted from the moment when it was asked for, which is never too late. OAuth 2's
    /// `expires_in`.
    pub fn with_lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = Some(lifetime);
        self
    }
}

/// A key that a [`KeyProvider`] gives, and how it is asked.
///
/// One refresh, however many requests wait for it, in a task that goes on whatever becomes of them. Ahead of the expiry
/// they go out with the old key meanwhile.
pub struct RefreshingKey {
    pub(super) provider: Arc<dyn KeyProvider>,
    pub(super) ahead: Duration,
    pub(super) timeout: Duration,
    pub(super) backoff: ExponentialBackoff,
}

impl RefreshingKey {
    /// As the AWS SDKs refresh their tokens.
    pub const DEFAULT_AHEAD: Duration = Duration::from_secs(300);
    /// As long as one attempt of a preset.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

    /// Asks `provider` when the first request wants a key, and again before the key expires.
    pub fn new(provider: impl KeyProvider + 'static) -> Self {
        Self {
            provider: Arc::new(provider),
            ahead: Self::DEFAULT_AHEAD,
            timeout: Self::DEFAULT_TIMEOUT,
            backoff: ExponentialBackoff::throttled(),
        }
    }

    /// How long before its expiry a key is refreshed; a fifth of its lifetime at the most.
    /// [5 minutes](Self::DEFAULT_AHEAD) by default.
    pub fn with_ahead(mut self, ahead: Duration) -> Self {
        self.ahead = ahead;
        self
    }

    /// The longest that one refresh may take. [10 s](Self::DEFAULT_TIMEOUT) by default.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn with_timeout(mut self, limit: Duration) -> Result<Self, InvalidConfig> {
        if limit.is_zero() {
            return Err(InvalidConfig::new("key refresh timeout", "0ns", "more than zero"));
        }
        self.timeout = limit;
        Ok(self)
    }

    /// How long the provider is left alone after a failure, and a key that the server refuses as soon as it was
    /// fetched is kept. [`ExponentialBackoff::throttled`] by default: 1 s, doubled up to 20 s.
    pub fn with_backoff(mut self, backoff: ExponentialBackoff) -> Self {
        self.backoff = backoff;
        self
    }
}

impl fmt::Debug for RefreshingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefreshingKey")
            .field("ahead", &self.ahead)
            .field("timeout", &self.timeout)
            .field("backoff", &self.backoff)
            .finish_non_exhaustive()
    }
}
