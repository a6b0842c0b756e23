use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    clock::{self, Instant},
    policy::Quota,
};

/// The arrival of a request: its time, or the range in which this time lies, and the number of permits that the request
/// costs.
///
/// An arrival that is created from an `Instant` costs one permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arrival {
    earliest: Instant,
    latest: Instant,
    permits: u32,
}

impl Arrival {
    /// Creates an arrival at an unknown time between two known times, such as the times before and after a limiter's
    /// grant on another thread. The arrival counts only in windows that contain both times, so that no window counts
    /// too many arrivals.
    ///
    /// # Panics
    ///
    /// Panics if `latest` is before `earliest`.
    #[track_caller]
    pub fn between(earliest: Instant, latest: Instant) -> Self {
        assert!(
            earliest <= latest,
            "invalid arrival: the latest time is {:?} before the earliest time",
            earliest - latest
        );
        Self { earliest, latest, permits: 1 }
    }

    /// Sets the number of permits that the arrival costs.
    #[must_use]
    pub fn with_permits(mut self, permits: u32) -> Self {
        self.permits = permits;
        self
    }
}

impl From<Instant> for Arrival {
    fn from(at: Instant) -> Self {
        Self { earliest: at, latest: at, permits: 1 }
    }
}

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

/// Finds the window of this length that contains the most permits. Both ends belong to the window. Returns the permits
/// and the start of the window, or `None` without arrivals. Considers only windows that start at an arrival, because
/// any other window can be moved to its first arrival without losing an arrival.
///
/// An arrival counts in a window that contains both its earliest and its latest time.
fn fullest(arrivals: &[Arrival], length: Duration) -> Option<(u64, Instant)> {
    let within = |end: Instant, start: Instant| end.duration_since(start) <= length;
    // An arrival whose range is longer than a window counts in no window. Every other range that begins before a window
    // also ends before the window's end. A window therefore contains the arrivals whose range ends by the window's end,
    // minus those whose range begins before its start.
    let fitting = arrivals.iter().filter(|arrival| within(arrival.latest, arrival.earliest));
    let (mut begins, mut ends): (Vec<_>, Vec<_>) = fitting
        .map(|Arrival { earliest, latest, permits }| ((*earliest, *permits), (*latest, *permits)))
        .unzip();
    begins.sort_unstable();
    ends.sort_unstable();

    let mut fullest: Option<(u64, Instant)> = None;
    let (mut begun, mut ended, mut next) = (0_u64, 0_u64, 0);
    for (start, permits) in begins {
        while let Some((_, more)) = ends.get(next).filter(|(end, _)| within(*end, start)) {
            ended += u64::from(*more);
            next += 1;
        }
        let inside = ended - begun;
        if fullest.is_none_or(|(most, _)| most < inside) {
            fullest = Some((inside, start));
        }
        begun += u64::from(permits);
    }
    fullest
}

/// Returns the highest level, in whole permits, of a bucket that these arrivals fill and that drains `refill` permits
/// per `per`. Counts an arrival in an interval only if the interval contains its earliest and its latest time.
fn highest_level(arrivals: &[Arrival], (refill, per): (u32, Duration)) -> u64 {
    let Some(start) = arrivals.iter().map(|arrival| arrival.earliest).min() else { return 0 };
    // One permit is as many units as `per` has nanoseconds, so that the arithmetic is exact.
    let drained = |at: Instant| at.duration_since(start).as_nanos() as i128 * i128::from(refill);
    let filled = |permits: u64| i128::from(permits) * per.as_nanos() as i128;
    let mut ends: Vec<_> = arrivals.iter().map(|arrival| (arrival.latest, arrival.permits)).collect();
    let mut begins: Vec<_> = arrivals.iter().map(|arrival| (arrival.earliest, arrival.permits)).collect();
    ends.sort_unstable();
    begins.sort_unstable();
    let (mut begun, mut ended, mut next) = (0, 0, 0);
    // The level is the largest difference between what arrived and what drained since any arrival.
    let (mut best, mut highest) = (i128::MIN, 0);
    for (end, permits) in ends {
        while let Some((begin, more)) = begins.get(next).filter(|(begin, _)| *begin <= end) {
            best = best.max(drained(*begin) - filled(begun));
            begun += u64::from(*more);
            next += 1;
        }
        ended += u64::from(permits);
        highest = highest.max(best.saturating_add(filled(ended) - drained(end)));
    }
    highest.unsigned_abs().div_ceil(per.as_nanos().max(1)) as u64
}

/// Describes a window with more permits than the quota allows.
fn describe(quota: Quota, arrivals: &[Arrival], permits: u64, start: Instant) -> String {
    const SHOWN: usize = 20;
    let length = quota.window();
    let first = arrivals.iter().map(|arrival| arrival.earliest).min().unwrap_or(start);
    let mut times = BTreeMap::<_, u64>::new();
    for Arrival { earliest, latest, permits } in arrivals {
        if *earliest >= start && latest.duration_since(start) <= length {
            *times.entry((*earliest - start, *latest - start)).or_default() += u64::from(*permits);
        }
    }
    let mut text = format!(
        "{permits} permits in a window of {length:?} including both ends, but the quota allows {}: {quota}\n\
         the window starts {:?} after the first of {} arrivals\n\
         arrivals in the window, by the time since its start:",
        quota.limit(),
        start - first,
        arrivals.len(),
    );
    for ((earliest, latest), permits) in times.iter().take(SHOWN) {
        let until = if latest > earliest { format!(" to {latest:?}") } else { String::new() };
        let count = if *permits > 1 { format!(" ({permits})") } else { String::new() };
        text += &format!("\n  {earliest:?}{until}{count}");
    }
    if times.len() > SHOWN {
        text += &format!("\n  and at {} later times", times.len() - SHOWN);
    }
    text
}
