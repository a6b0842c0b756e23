use std::{fmt, hash::Hash, sync::Arc};

use super::StackBuilder;
use crate::{
    config::InvalidConfig,
    limit::{AnyLimiter, Joint, Keyed, LocalLimiter, RateLimitLayer},
};

impl StackBuilder {
    /// Also limits the requests to each endpoint, below the limit of the account, which is the builder's limiter. A
    /// request takes its permits from both at once: see [`Joint`].
    ///
    /// ```
    /// use tower_outbound::{Client, Quota, limit::{Keyed, LocalLimiter}};
    ///
    /// // 5,000 requests per hour, of which at most 30 per minute are searches.
    /// let search = Quota::per_minute(30)?;
    /// let endpoints = Keyed::new(
    ///     |head| head.uri.path().starts_with("/search"),
    ///     move |is_search| if *is_search { LocalLimiter::paced_window(search) } else { LocalLimiter::without_quota() },
    /// );
    /// let builder = Client::builder("https://api.example.com")?
    ///     .with_quota(Quota::per_hour(5_000)?)
    ///     .with_endpoint_limits(endpoints);
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// A throttled response that names an endpoint, a resource or a bucket then pauses only the limiter of this
    /// endpoint.
    ///
    /// # Errors
    ///
    /// [`layer`](Self::layer) returns an error if [`with_limiter`](Self::with_limiter) has set another limiter than a
    /// [`LocalLimiter`].
    pub fn with_endpoint_limits<K>(mut self, endpoints: Keyed<K>) -> Self
    where
        K: Hash + Eq + Clone + Send + 'static,
    {
        #[cfg(feature = "client")]
        let id = endpoints.id();
        let join =
            move |account: &LocalLimiter| AnyLimiter::new(Joint::new(account.clone(), endpoints.clone()));
        self.endpoints = Some(EndpointLimits {
            join: Arc::new(join),
            #[cfg(feature = "client")]
            id,
        });
        self
    }

    /// Returns the limit layer, with the limiters of the endpoints.
    pub(super) fn joint_limit(&self) -> Result<RateLimitLayer<AnyLimiter>, InvalidConfig> {
        let (limit, Some(EndpointLimits { join, .. })) = (self.limit.clone(), &self.endpoints) else {
            return Ok(self.limit.clone());
        };
        let account = self.limiter().downcast_ref().ok_or_else(|| {
            let expected = "a LocalLimiter, or a Joint in with_limiter instead of endpoint limits";
            InvalidConfig::new("limiter with endpoint limits", format!("{:?}", self.limiter()), expected)
        })?;
        Ok(limit.with_limiter(join(account)))
    }
}

/// Adds the limiters of the endpoints to that of the account.
#[derive(Clone)]
pub(super) struct EndpointLimits {
    join: Arc<dyn Fn(&LocalLimiter) -> AnyLimiter + Send + Sync>,
    /// Identifies the limiters: see [`Keyed::id`].
    #[cfg(feature = "client")]
    pub(super) id: usize,
}

impl fmt::Debug for EndpointLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointLimits").finish_non_exhaustive()
    }
}
