use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    arrival::Arrival,
    window::{describe, fullest, highest_level},
};
use crate::{
    clock::{self, Instant},
    policy::Quota,
};

/// Records when requests arrive, and asserts that no window contains more requests than a quota allows. Both ends of a
/// window belong to the window.
///
/// [`note`](Self::note) and [`extend`](Extend::extend) add arrivals. A record can also be collected from an iterator of
/// instants, or come from [`ScriptedService::arrivals`](super::ScriptedService::arrivals).
///
/// # Clone
///
/// All clones share one record.
///
/// ```
/// use std::time::Duration;
/// use tower::{Service, ServiceBuilder, ServiceExt};
/// use tower_outbound::{Quota, limit::{RateLimitLayer, LocalLimiter}, test_util::Arrivals};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let quota = Quota::per_second(10)?;
/// let arrivals = Arrivals::new();
/// let server = arrivals.clone();
/// let mut service = ServiceBuilder::new()
///     .layer(RateLimitLayer::new(LocalLimiter::sliding_window(quota)))
///     .service_fn(move |_: http::Request<()>| {
///         server.note();
///         async { Ok::<_, std::io::Error>(http::Response::new(())) }
///     });
/// for _ in 0..25 {
///     service.ready().await?.call(http::Request::new(())).await?;
/// }
/// arrivals.assert_within(quota);
/// assert_eq!(arrivals.most_in(Duration::from_secs(1)), 10);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    noted: Arc<Mutex<Vec<Arrival>>>,
}

impl Arrivals {
    /// Creates an empty record.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records an arrival at the current time of tokio's clock.
    pub fn note(&self) {
        self.noted().push(clock::now().into());
    }

    /// Returns the time of each arrival, in the order in which they were recorded. For an [`Arrival::between`], returns
    /// the later time.
    pub fn times(&self) -> Vec<Instant> {
        self.noted().iter().map(|arrival| arrival.latest).collect()
    }

    /// Returns the largest number of permits in any window of length `window`. Arrivals that are exactly `window` apart
    /// are in the same window.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokio::time::Instant;
    /// use tower_outbound::test_util::Arrivals;
    ///
    /// let start = Instant::now();
    /// let arrivals: Arrivals = [0, 400, 1_000].map(|millis| start + Duration::from_millis(millis)).into_iter().collect();
    /// assert_eq!(arrivals.most_in(Duration::from_millis(1_000)), 3);
    /// assert_eq!(arrivals.most_in(Duration::from_millis(999)), 2);
    /// ```
    pub fn most_in(&self, window: Duration) -> u64 {
        fullest(&self.noted(), window).map_or(0, |(permits, _)| permits)
    }

    /// Asserts that no window of the quota's length contains more permits than the quota's limit, or that a
    /// [bucket](Quota::bucket) never overflows. The quota's margin is ignored, because delayed requests may use it up.
    ///
    /// # Panics
    ///
    /// Panics if a window contains more permits than the limit, and describes that window, or if the bucket overflows.
    #[track_caller]
    pub fn assert_within(&self, quota: Quota) {
        let arrivals = self.noted().clone();
        if let Some(refill) = quota.refill() {
            let level = highest_level(&arrivals, refill);
            return assert!(level <= quota.limit().into(), "{level} permits in a bucket: {quota}");
        }
        let Some((permits, start)) = fullest(&arrivals, quota.window()) else { return };
        assert!(permits <= u64::from(quota.limit()), "{}", describe(quota, &arrivals, permits, start));
    }

    fn noted(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: Into<Arrival>> Extend<A> for Arrivals {
    fn extend<I: IntoIterator<Item = A>>(&mut self, more: I) {
        // Collects the arrivals before locking the record, because the iterator may call `note`, which also locks the
        // record.
        let more: Vec<_> = more.into_iter().map(Into::into).collect();
        self.noted().extend(more);
    }
}

impl<A: Into<Arrival>> FromIterator<A> for Arrivals {
    fn from_iter<I: IntoIterator<Item = A>>(arrivals: I) -> Self {
        let noted: Vec<_> = arrivals.into_iter().map(Into::into).collect();
        Self { noted: Arc::new(Mutex::new(noted)) }
    }
}
