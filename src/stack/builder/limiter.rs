//! The quotas and the limiter of a stack.

use std::{fmt, time::Duration};

use http::{HeaderMap, StatusCode};

use super::StackBuilder;
use crate::{
    config::InvalidConfig,
    limit::{
        AnyLimiter, LocalLimiter, Priority, RateLimitLayer, SelectLimiter, core::CoreSettings, max_in_flight,
    },
    policy::{
        Quota,
        dialect::{Dialect, ServerSignal},
        nanos,
    },
};

/// Setters of the quota and the limiter.
impl StackBuilder {
    /// Sets the quota, such as 300 requests per minute. The builder creates a
    /// [paced window](crate::limit::LocalLimiter::paced_window) for it. If the limit exceeds 10,000
    /// requests, the builder creates a [token bucket](crate::limit::LocalLimiter::token_bucket) instead, whose memory does
    /// not grow with the limit.
    ///
    /// ```
    /// use tower_outbound::{Client, Quota};
    ///
    /// let builder = Client::builder("https://api.example.com/v2")?.with_quota(Quota::per_minute(300)?);
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// Each call waits in the queue for at most the [total timeout](Self::with_total_timeout), 60 s by default. The
    /// limiter immediately refuses a call that would have to wait longer.
    ///
    /// # Errors
    ///
    /// [`layer`](Self::layer) returns an error if this method is called after [`with_limiter`](Self::with_limiter),
    /// because the quota would replace that limiter.
    pub fn with_quota(self, quota: Quota) -> Self {
        self.with_quotas([quota])
    }

    /// Sets several quotas that apply at once, such as 10 per second and 100 per minute. With an empty list, an
    /// [adaptive](crate::limit::LocalLimiter::adaptive) limiter learns the rate. See [`with_quota`](Self::with_quota).
    pub fn with_quotas(mut self, quotas: impl IntoIterator<Item = Quota>) -> Self {
        if self.has_given_limiter {
            let expected = self.none_besides_given("quotas");
            let text = |quota: Quota| format!("{}/{:?}", quota.limit(), quota.window());
            let quotas = quotas.into_iter().map(text).collect::<Vec<_>>().join(", ");
            self.invalid.get_or_insert_with(|| InvalidConfig::new("quota", quotas, expected));
            return self;
        }
        let settings = self.limiter_settings;
        self.with_own_limiter(quotas, settings)
    }

    /// Gives the builder a new limiter of its own, with these quotas. The caller may still replace the quotas or the
    /// limiter.
    pub(crate) fn with_own_limiter(
        mut self,
        quotas: impl IntoIterator<Item = Quota>,
        settings: CoreSettings,
    ) -> Self {
        self.quotas = quotas.into_iter().collect();
        self.limiter_settings = settings;
        self.renew_limiter();
        self
    }

    pub(super) fn renew_limiter(&mut self) {
        let limiter = AnyLimiter::of_quotas(&self.quotas, self.limiter_settings);
        self.limit = self.limit.clone().with_limiter(limiter);
    }

    /// Sets the [longest pause](crate::limit::LocalLimiter::with_longest_pause) of the builder's own limiter. Default:
    /// one hour.
    ///
    /// # Errors
    ///
    /// [`layer`](Self::layer) returns an error if `longest` is zero, or if this method is called after
    /// [`with_limiter`](Self::with_limiter).
    pub fn with_longest_pause(self, longest: Duration) -> Self {
        self.with_limiter_setting("longest pause", format!("{longest:?}"), |settings| {
            settings.pauses = settings.pauses.with_longest(longest)?;
            Ok(())
        })
    }

    /// Sets the [pause after a throttled response without a delay](crate::limit::LocalLimiter::with_throttle_pause) of
    /// the builder's own limiter. Default: 1 s, or the pause that an adaptive limiter chooses, if no quota is set. Set
    /// it for a service that documents a penalty.
    ///
    /// # Errors
    ///
    /// [`layer`](Self::layer) returns an error if `pause` is longer than five minutes, or if this method is called
    /// after [`with_limiter`](Self::with_limiter).
    pub fn with_throttle_pause(self, pause: Duration) -> Self {
        self.with_limiter_setting("throttle pause", format!("{pause:?}"), |settings| {
            settings.pauses = settings.pauses.with_throttled(pause)?;
            Ok(())
        })
    }

    /// Lets the builder's own limiter allow at most [`max`](crate::limit::LocalLimiter::with_max_in_flight) requests in
    /// flight, besides the quota. Default: no limit.
    ///
    /// ```
    /// use tower_outbound::{Client, Quota};
    ///
    /// let builder = Client::builder("https://api.example.com")?
    ///     .with_quota(Quota::per_minute(600)?)
    ///     .with_max_in_flight(4);
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`layer`](Self::layer) returns an error if `max` is zero, or if this method is called after
    /// [`with_limiter`](Self::with_limiter).
    pub fn with_max_in_flight(self, max: u32) -> Self {
        self.with_limiter_setting("max in flight", max.to_string(), |settings| {
            settings.max_in_flight = Some(max_in_flight(max)?);
            Ok(())
        })
    }

    /// Sets the [hold after a cancelled request](crate::limit::LocalLimiter::with_hold_after_cancel) of the builder's
    /// own limiter. Default: zero. Has no effect without [`with_max_in_flight`](Self::with_max_in_flight).
    ///
    /// # Errors
    ///
    /// [`layer`](Self::layer) returns an error if this method is called after [`with_limiter`](Self::with_limiter).
    pub fn with_hold_after_cancel(self, hold: Duration) -> Self {
        self.with_limiter_setting("hold after cancel", format!("{hold:?}"), |settings| {
            settings.hold_after_cancel = nanos(hold);
            Ok(())
        })
    }

    fn with_limiter_setting(
        mut self,
        field: &'static str,
        value: String,
        change: impl FnOnce(&mut CoreSettings) -> Result<(), InvalidConfig>,
    ) -> Self {
        let changed = match self.has_given_limiter {
            true => Err(self.lost_setting(field, value)),
            false => change(&mut self.limiter_settings),
        };
        match changed {
            Ok(()) => self.renew_limiter(),
            Err(error) => _ = self.invalid.get_or_insert(error),
        }
        self
    }

    /// Replaces the limiter. Examples are a [sliding window](crate::limit::LocalLimiter::sliding_window), a limiter
    /// that several clients share, and a separate limiter for each key ([`Keyed`](crate::limit::Keyed)).
    ///
    /// - The limiter's own quotas apply instead of the preset's quotas. [`quotas`](Self::quotas) still returns the
    ///   preset's quotas.
    /// - The new limiter receives the server's rate-limit headers.
    /// - The longest wait and the maximum length of the queue stay as [`with_limit`](Self::with_limit) set them.
    /// - Later, only this method or the closure of [`with_limit`](Self::with_limit) can replace the limiter.
    /// - The `Debug` output of the builder and of its layers contains the `Debug` output of the limiter. A custom
    ///   limiter must therefore not write a secret.
    ///
    /// ```
    /// use tower_outbound::{limit::LocalLimiter, preset};
    ///
    /// // The server is known to count a sliding window, so the whole quota may be sent at once.
    /// let rates = preset::currency_rates("https://rates.example.com")?;
    /// let window = LocalLimiter::sliding_window(rates.quotas().iter().copied());
    /// let rates = rates.with_limiter(window);
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// Two clients can share a limiter. Logs and metrics show each client under the name of its host, unless
    /// [`with_name`](Self::with_name) sets another name.
    ///
    /// ```
    /// use tower_outbound::{ApiKey, Client, InvalidConfig, Quota, limit::LocalLimiter};
    ///
    /// fn clients(key: ApiKey) -> Result<(Client, Client), InvalidConfig> {
    ///     let shared = LocalLimiter::paced_window(Quota::per_minute(300)?);
    ///     let orders = Client::builder("https://api.example.com/orders")?.with_api_key(key.clone());
    ///     let users = Client::builder("https://api.example.com/users")?.with_api_key(key);
    ///     Ok((orders.with_limiter(shared.clone()).client()?, users.with_limiter(shared).client()?))
    /// }
    /// # clients(ApiKey::new("s3cret")?)?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`layer`](Self::layer) returns an error if a setting of the builder's own limiter is also set, such as
    /// [`with_max_in_flight`](Self::with_max_in_flight) or `limit.max_in_flight` in a file, unless this limiter is a
    /// [`LocalLimiter`] with the same value. Set it on the limiter.
    pub fn with_limiter<L>(mut self, limiter: L) -> Self
    where
        L: SelectLimiter + fmt::Debug + Send + Sync + 'static,
    {
        self.limit = self.limit.with_limiter(AnyLimiter::new(limiter));
        self.has_given_limiter = true;
        self
    }

    /// Returns an error if a setting of the builder's own limiter has no effect, because the limiter that the caller has
    /// set has another value.
    pub(super) fn check_limiter_settings(&self) -> Result<(), InvalidConfig> {
        if !self.has_given_limiter {
            return Ok(());
        }
        let given = self.limiter().downcast_ref().map_or(CoreSettings::DEFAULT, LocalLimiter::settings);
        let lost = self.limiter_settings.first_unlike(&given);
        lost.map_or(Ok(()), |(field, value)| Err(self.lost_setting(field, value)))
    }

    fn lost_setting(&self, field: &'static str, value: String) -> InvalidConfig {
        const IN_FILE: &str = "none, because the program gives the client a limiter with its own settings";
        let error = InvalidConfig::of_setting(field, value, self.none_besides_given("settings"));
        error.at("limit").expecting_in_file(IN_FILE)
    }

    fn none_besides_given(&self, what: &str) -> String {
        let owner = if self.pool.is_some() { "each member of the pool has" } else { "with_limiter has set" };
        format!("none, because {owner} a limiter with its own {what}")
    }

    /// Sets the priority in the limiter's queue for all requests without a [`Priority`] in their extensions. Default:
    /// [`Priority::Normal`].
    ///
    /// Use this setter if two clients share a limiter, for example one for users and one for background jobs.
    pub fn with_priority(self, priority: Priority) -> Self {
        self.with_limit(|limit| {
            limit.with_priority(move |head| head.extensions.get().copied().unwrap_or(priority))
        })
    }

    /// Changes the bounds of the wait for a permit: the longest wait, and the maximum length of the queue.
    pub fn with_limit(
        mut self,
        change: impl FnOnce(RateLimitLayer<AnyLimiter>) -> RateLimitLayer<AnyLimiter>,
    ) -> Self {
        let before = self.limit.limiter().clone();
        self.limit = change(self.limit);
        // A closure that replaces the limiter has the same effect as `with_limiter`.
        self.has_given_limiter |= !self.limit.limiter().is_same(&before);
        self
    }

    /// Sets how the service reports its limits, for the limiter and for retries.
    ///
    /// The statuses and headers of many services need no setting: see the [guide](crate::guide::services). This setter
    /// replaces an earlier dialect, with the function of [`with_server_signal`](Self::with_server_signal), and the dialects
    /// of [`with_retry`](Self::with_retry) and [`with_limit`](Self::with_limit).
    ///
    /// ```
    /// use http::HeaderName;
    /// use tower_outbound::{Client, limit::{Dialect, QuotaHeaders}};
    ///
    /// let header = HeaderName::from_static;
    /// let credits = QuotaHeaders::new(header("x-credits-left")).with_reset(header("x-credits-renew-at"));
    /// let builder = Client::builder("https://api.example.com/v2")?
    ///     .with_dialect(Dialect::new().with_quota_headers(credits)?);
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = Some(dialect);
        self
    }

    /// Sets a function that reads from the status and the headers of a response whether the server throttles, and for how
    /// long: see [`Dialect::with_signal`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_outbound::{Client, limit::ServerSignal};
    ///
    /// // The service throttles with a 400, and documents a penalty of 30 s.
    /// let builder = Client::builder("https://api.example.com/v2")?.with_server_signal(|status, headers| {
    ///     let is_throttle = status == 400 && headers.get("x-error").is_some_and(|error| error == "RATELIMITED");
    ///     is_throttle.then(|| ServerSignal::throttled().with_delay(Duration::from_secs(30)).with_not_processed())
    /// });
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn with_server_signal(
        mut self,
        signal: impl Fn(StatusCode, &HeaderMap) -> Option<ServerSignal> + Send + Sync + 'static,
    ) -> Self {
        self.dialect = Some(self.dialect.unwrap_or_default().with_signal(signal));
        self
    }

    /// Returns the quotas that the preset or the last call of [`with_quotas`](Self::with_quotas) has set. All quotas
    /// apply at the same time. A limiter that [`with_limiter`](Self::with_limiter) has set may have other quotas, which
    /// the builder does not know.
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas
    }

    /// Returns the limiter, for example to take its snapshot. [`with_limiter`](Self::with_limiter) replaces the
    /// default:
    ///
    /// | quota | limiter |
    /// |---|---|
    /// | none | [adaptive](crate::limit::LocalLimiter::adaptive) |
    /// | each limit is at most 10,000 requests, or counts another unit | [paced window](crate::limit::LocalLimiter::paced_window) |
    /// | a limit is above 10,000 requests | [token bucket](crate::limit::LocalLimiter::token_bucket) |
    ///
    /// ```
    /// use tower_outbound::{limit::LocalLimiter, preset};
    ///
    /// let rates = preset::currency_rates("https://rates.example.com")?;
    /// let window = rates.limiter().downcast_ref::<LocalLimiter>().ok_or("another limiter")?;
    /// assert_eq!(window.snapshot().available, 10);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn limiter(&self) -> &AnyLimiter {
        self.limit.limiter()
    }
}
