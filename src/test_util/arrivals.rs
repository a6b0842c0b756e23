use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

use super::window::{Overrun, fullest};
use crate::{
    clock::{self, Instant},
    policy::Quota,
};

/// When requests arrived, and the check of the window: at most N in any window of length W, both of its ends counted.
///
/// Filled as a layer below a limiter, where each call counts for one permit when it is made; by hand, with
/// [`note`](Self::note) and [`extend`](Extend::extend); from a list of instants; or by
/// [`ScriptedService::arrivals`](super::ScriptedService::arrivals).
///
/// # Clone
///
/// Clones, and the services that they make as layers, share one record.
///
/// ```
/// use std::time::Duration;
/// use tower::{Service, ServiceBuilder, ServiceExt};
/// use tower_outbound::{Quota, limit::{RateLimitLayer, SlidingWindow}, test_util::Arrivals};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let quota = Quota::per_second(10)?;
/// let arrivals = Arrivals::new();
/// let mut service = ServiceBuilder::new()
///     .layer(RateLimitLayer::new(SlidingWindow::new(quota)))
///     .layer(&arrivals)
///     .service_fn(|_: http::Request<()>| async { Ok::<_, std::io::Error>(http::Response::new(())) });
/// for _ in 0..25 {
///     service.ready().await?.call(http::Request::new(())).await?;
/// }
/// arrivals.assert_within(quota);
/// assert_eq!(arrivals.most_in(Duration::from_secs(1)), 10);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Arrivals {
    noted: Arc<Mutex<Vec<Arrival>>>,
}

/// One arrival: its time, as exactly as that is known, and the permits that it cost.
///
/// Made of an instant, it happened then and cost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arrival {
    pub(super) earliest: Instant,
    pub(super) latest: Instant,
    pub(super) permits: u32,
}

impl Arrival {
    /// One that happened some time between the two: before and after a grant of a limiter under real threads, say. It
    /// counts in the windows that both are in, so that what is counted is never more than what was.
    ///
    /// # Panics
    ///
    /// When they are the wrong way round.
    #[track_caller]
    pub fn between(earliest: Instant, latest: Instant) -> Self {
        assert!(earliest <= latest, "an arrival ends {:?} before it began", earliest - latest);
        Self { earliest, latest, permits: 1 }
    }

    /// It cost so many.
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

impl Arrivals {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One arrives now, by tokio's clock.
    pub fn note(&self) {
        self.noted().push(clock::now().into());
    }

    /// When each of them arrived, in the order in which they were noted; of one that is known between two times, the
    /// later.
    pub fn times(&self) -> Vec<Instant> {
        self.noted().iter().map(|arrival| arrival.latest).collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.noted().len()
    }

    /// The most permits in any window of this length, both of its ends counted: two that are exactly `window` apart
    /// are in one.
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
        fullest(&self.noted(), window).map_or(0, |fullest| fullest.permits)
    }

    /// Asserts that no window of the quota's length contains more permits than its limit. Ignores the margin, because
    /// late requests may use it up.
    ///
    /// # Panics
    ///
    /// Panics if a window contains more permits, and names that window.
    #[track_caller]
    pub fn assert_within(&self, quota: Quota) {
        let arrivals = self.noted().clone();
        match fullest(&arrivals, quota.window()) {
            Some(fullest) if fullest.permits > u64::from(quota.limit()) => {
                panic!("{}", Overrun { quota, arrivals: &arrivals, fullest })
            }
            _ => {}
        }
    }

    fn noted(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: Into<Arrival>> Extend<A> for Arrivals {
    fn extend<I: IntoIterator<Item = A>>(&mut self, more: I) {
        // Collected first: the iterator may note something itself.
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

impl fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrivals").field("count", &self.count()).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for Arrivals {
    type Service = NoteArrivals<S>;

    fn layer(&self, inner: S) -> Self::Service {
        NoteArrivals { inner, arrivals: self.clone() }
    }
}

/// Notes each request when it is called, and hands it on: made by [`Arrivals`] as a layer.
#[derive(Debug, Clone)]
pub struct NoteArrivals<S> {
    inner: S,
    arrivals: Arrivals,
}

impl<S: Service<R>, R> Service<R> for NoteArrivals<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.arrivals.note();
        self.inner.call(request)
    }
}
