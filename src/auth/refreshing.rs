use std::{fmt, future, path::PathBuf, pin::Pin, time::Duration};

use super::{ApiKey, KeyError};
use crate::{
    config::InvalidConfig,
    error::BoxError,
    policy::{ExponentialBackoff, Jitter},
};

type Fetch = dyn Fn() -> Pin<Box<dyn Future<Output = Result<FreshKey, BoxError>> + Send>> + Send + Sync;

/// A key that a closure fetches, for example from a vault. With the feature `oauth2`, `adapter::ClientCredentials`
/// fetches tokens without a closure.
///
/// Refreshes are single-flight: concurrent requests share one refresh. A refresh runs in a task on the runtime of the
/// request that starts it, and continues if that request is dropped. If the runtime shuts down, or does not end the
/// refresh within 1 s after its [timeout](Self::with_timeout), a request that waits, or the next request, starts another
/// refresh on its own runtime. The first key that arrives is used.
///
/// A runtime is not driven while nothing polls its tasks, for example between two calls of `Runtime::block_on`. A
/// refresh that fails because its runtime was not driven starts again without a backoff, unless its error requests a
/// delay.
///
/// A key is refreshed 5 minutes before its expiry, as in the AWS SDKs. If its lifetime is shorter than 25 minutes, it
/// is refreshed after 80 % of that lifetime. During the refresh, requests use the old key while it is valid, and wait
/// otherwise. After a failure, the closure is called again only after a backoff. During the backoff, requests without a
/// valid key fail with a [`KeyError`](super::KeyError).
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{ApiKey, BoxError, auth::{FreshKey, KeySource, RefreshingKey}};
///
/// let keys = KeySource::from(RefreshingKey::new(|| async {
///     // Call the token endpoint here, with a client of its own.
///     let (token, expires_in) = ("t0ken", 3_600);
///     Ok::<_, BoxError>(FreshKey::new(ApiKey::new(token)?).with_lifetime(Duration::from_secs(expires_in)))
/// }));
/// ```
pub struct RefreshingKey {
    pub(super) provider: Box<Fetch>,
    /// The interval after which a file is read again. `None` if a closure fetches the key.
    pub(super) file_interval: Option<Duration>,
    pub(super) timeout: Duration,
    pub(super) backoff: ExponentialBackoff,
}

impl RefreshingKey {
    /// The default of [`with_timeout`](Self::with_timeout): 10 s, like the attempt timeout of a preset.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

    /// Fetches the key with the closure `provider` for the first request, and again before the key expires.
    ///
    /// An error of the closure must not contain the key.
    pub fn new<F, Fut, E>(provider: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<FreshKey, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Self {
            provider: Box::new(move || {
                let fetched = provider();
                Box::pin(async move { fetched.await.map_err(Into::into) })
            }),
            file_interval: None,
            timeout: Self::DEFAULT_TIMEOUT,
            backoff: ExponentialBackoff::throttled(),
        }
    }

    /// Reads the key from a file after each interval. Reads the file at most once a second if it is unreadable, or if
    /// the server rejects its key.
    pub(super) fn file(path: PathBuf, interval: Duration) -> Result<Self, InvalidConfig> {
        let second = Duration::from_secs(1);
        let backoff = ExponentialBackoff::new(second, second)?.with_jitter(Jitter::none());
        let unread = |error| KeyError::new("the key file could not be read again").with_source(error);
        let read = move || future::ready(ApiKey::from_file(&path).map(FreshKey::new).map_err(unread));
        Ok(Self { file_interval: Some(interval), ..Self::new(read).with_backoff(backoff) })
    }

    /// Limits the time of one refresh. The default is [10 s](Self::DEFAULT_TIMEOUT).
    ///
    /// With tokio's paused clock, let a test sleep beyond this limit. If `advance` passes the limit by more than 1 s at
    /// once, the refresh starts again, as after a time without a driven runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is zero.
    pub fn with_timeout(mut self, limit: Duration) -> Result<Self, InvalidConfig> {
        if limit.is_zero() {
            return Err(InvalidConfig::new("key refresh timeout", "0ns", "more than zero"));
        }
        self.timeout = limit;
        Ok(self)
    }

    /// Sets the delay after a failed refresh. The same delay applies if the server rejects a key right after its
    /// refresh: the key is not refreshed again before the delay has passed. The default is
    /// [`ExponentialBackoff::throttled`]: 1 s, doubled up to 20 s.
    pub fn with_backoff(mut self, backoff: ExponentialBackoff) -> Self {
        self.backoff = backoff;
        self
    }
}

impl fmt::Debug for RefreshingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefreshingKey")
            .field("timeout", &self.timeout)
            .field("backoff", &self.backoff)
            .finish_non_exhaustive()
    }
}

/// A key that the closure of a [`RefreshingKey`] has fetched, and its lifetime.
#[derive(Debug, Clone)]
pub struct FreshKey {
    pub(super) key: ApiKey,
    pub(super) lifetime: Option<Duration>,
}

impl FreshKey {
    /// Creates a key without a lifetime. It is valid until the server rejects it.
    pub fn new(key: ApiKey) -> Self {
        Self { key, lifetime: None }
    }

    /// Sets the key's lifetime, such as OAuth 2's `expires_in`. The lifetime counts from the start of the refresh, so
    /// that the key is never used after its expiry.
    pub fn with_lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = Some(lifetime);
        self
    }
}
