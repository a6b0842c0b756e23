use super::service::Client;
use crate::{config::InvalidConfig, stack::StackBuilder};

impl Client {
    /// Changes the settings of the client and of all its clones to those of `builder`. The connections, the limiter
    /// and its queue stay.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::{Client, InvalidConfig, Quota};
    ///
    /// # fn run() -> Result<(), InvalidConfig> {
    /// let builder = Client::builder("https://api.example.com")?.without_credential();
    /// let client = builder.client()?;
    ///
    /// // Later, with a quota of another plan.
    /// let builder = builder.with_quota(Quota::per_minute(300)?).with_total_timeout(Duration::from_secs(20));
    /// client.reconfigure(&builder)?;
    /// # Ok(())
    /// # }
    /// # run().unwrap();
    /// ```
    ///
    /// | setting | effect |
    /// |---|---|
    /// | timeouts, retries, credential, default headers, dialect, name, request id, attempt span | apply to calls that start afterwards. A call in progress keeps its settings, also for its retries |
    /// | longest wait, maximum queue, priority, cost | apply to calls that start afterwards |
    /// | quotas | apply to every request that has no permit yet. See [`LocalLimiter::set_quotas`](crate::limit::LocalLimiter::set_quotas) |
    /// | longest pause, throttle pause, limit of requests in flight, hold after a cancelled request | apply to the limiter from now on |
    /// | initial burst | ignored, because the limiter has started |
    /// | base URL, pool, endpoint limits, a limiter from [`with_limiter`](StackBuilder::with_limiter), number of transport layers and of outer layers | must not change |
    /// | whether requests in flight are limited | must not change |
    /// | transport | ignored. `StackConfig::reconfigure` returns an error |
    ///
    /// # Quotas
    ///
    /// The client keeps the limiter with which it was created, so permits already spent still count and waiters keep
    /// their order. The builder's own limiter is not used. The quotas also change for other clients that share the
    /// client's limiter.
    ///
    /// | from | to | effect |
    /// |---|---|---|
    /// | quotas | other quotas | the kind of limiter stays: a paced window or a token bucket |
    /// | none | quotas | the limiter stays [adaptive](crate::limit::LocalLimiter::adaptive) and keeps its learned rate. The quotas are the ceiling. Their burst becomes available gradually if a request was sent before |
    /// | quotas | none | the limiter begins to learn the rate, as an adaptive limiter without a quota. If it is adaptive, the rate that it has learned applies again |
    ///
    /// A limiter from [`with_limiter`](StackBuilder::with_limiter) keeps its quotas. The builder must contain the same
    /// limiter: a clone of the [`AnyLimiter`](crate::limit::AnyLimiter) or of the
    /// [`LocalLimiter`](crate::limit::LocalLimiter).
    ///
    /// # Errors
    ///
    /// Returns an error if a setting must not change, or the errors of [`StackBuilder::layer`]. The client then keeps
    /// all its settings.
    ///
    /// # Notes
    ///
    /// - The environment variable or the file of a key is read again. Reading a file blocks the thread.
    /// - The retry budget starts full, unless both builders have the same [`Budget`](crate::retry::Budget).
    /// - The transport layers and the outer layers of the builder are not applied. Only their numbers are compared. The
    ///   state of the client's layers stays, such as that of a circuit breaker.
    pub fn reconfigure(&self, builder: &StackBuilder) -> Result<(), InvalidConfig> {
        match self.inner.transport.get() {
            Some(_) => self.inner.current.change(&builder.with_default_user_agent()),
            None => self.inner.current.change(builder),
        }
    }

    /// Returns whether the client uses other transport settings. A custom service has none.
    #[cfg(feature = "serde")]
    pub(crate) fn has_other_transport(&self, transport: &crate::transport::TransportConfig) -> bool {
        self.inner.transport.get().is_some_and(|own| own != transport)
    }
}
