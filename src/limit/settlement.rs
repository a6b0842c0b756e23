use std::{
    fmt,
    io::IoSlice,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Buf;

use super::shell::Shared;
use crate::policy::{Amounts, Taken};

/// Reports the actual amounts of a request, such as its tokens, to the limiter that counts the estimate.
///
/// A [`RateLimit`](super::RateLimit) inserts it into the extensions of the response if the request has [`Amounts`], or if
/// the layer has [`with_actual`](super::RateLimitLayer::with_actual) or
/// [`with_meter`](super::RateLimitLayer::with_meter). Without the layer,
/// [`Permit::settlement`](super::Permit::settlement) returns it.
///
/// ```
/// use tower_outbound::{Quota, limit::{Amounts, Limiter, LocalLimiter, PermitRequest, Unit}};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let limiter = LocalLimiter::sliding_window(Quota::per_minute(30_000)?.with_unit(Unit::Tokens)?);
/// let estimate = Amounts::of(Unit::Tokens, 1_000);
/// let mut permit = limiter.acquire_with(&PermitRequest::new().with_amounts(estimate)).await?;
/// permit.mark_sent(tokio::time::Instant::now());
/// // Send the request and read its response here.
/// if let Some(settlement) = permit.settlement() {
///     settlement.settle(Amounts::of(Unit::Tokens, 640));
/// }
/// assert_eq!(limiter.snapshot().units[0].available, 29_360);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantee
///
/// The actual amounts of the requests in any window exceed the limit only by what becomes known after the last request of
/// the window was granted: for each request, its actual amount minus the amount that it had been charged by then. The limit
/// always holds if the charged amount of no request rises, and no amount is above the limit. For a
/// [bucket](crate::Quota::bucket), the limit in any interval of length `t` is
/// `capacity + refill × t / per`.
///
/// - If a request takes more than its estimate, the excess counts from the settlement on, and delays the next requests.
/// - If it takes less, the difference is available again at once, unless a bucket has refilled it.
///
/// # Cancellation
///
/// The estimate of a sent request counts until it is settled. The estimate of a request that was not sent is available
/// again.
///
/// # Clone
///
/// All clones settle the same request.
#[derive(Clone)]
pub struct Settlement(Arc<Charge<Settled>>);

/// What a request takes so far, and the function that passes a change to the limiter.
struct Charge<F: ?Sized> {
    taken: Mutex<Taken>,
    settled: F,
}

/// Receives the amounts so far and the new ones.
type Settled = dyn Fn(&Taken, &Amounts) + Send + Sync;

impl Settlement {
    pub(super) fn new(amounts: Amounts, settled: impl Fn(&Taken, &Amounts) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Charge { taken: Mutex::new(Taken::of(amounts)), settled }))
    }

    /// Settles amounts that `limiter` took at `taken_at`.
    pub(super) fn of_shared(limiter: &Arc<Shared>, taken_at: u64, amounts: Amounts) -> Self {
        let limiter = Arc::clone(limiter);
        Self::new(amounts, move |taken, actual| limiter.settle(taken_at, taken, actual))
    }

    /// Reports the actual amounts. They replace the estimate, or the amounts of an earlier call. A smaller amount is
    /// available again at once, so report it only if it is final. Zero is valid, for example if the service does not count a
    /// 304.
    pub fn settle(&self, actual: Amounts) {
        let mut taken = self.lock();
        let before = *taken;
        taken.charged = actual;
        drop(taken);
        if before.charged == actual {
            return;
        }
        // Outside the lock, because the limiter wakes waiters. Several calls may arrive in any order, because each passes
        // only its difference.
        (self.0.settled)(&before, &actual);
    }

    /// Returns the amounts that the request takes so far: the estimate until the first [`settle`](Self::settle).
    pub fn charged(&self) -> Amounts {
        self.taken().charged
    }

    pub(super) fn taken(&self) -> Taken {
        *self.lock()
    }

    /// Records that the permit has ended. Returns what the request takes.
    pub(super) fn end(&self, is_accepted: bool) -> Taken {
        let mut taken = self.lock();
        taken.is_accepted = Some(is_accepted);
        *taken
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settlement").field("charged", &self.charged()).finish_non_exhaustive()
    }
}

/// The actual amounts that a [meter](super::RateLimitLayer::with_meter) has read from a response body.
///
/// ```
/// use tower_outbound::limit::{Amounts, Metered, Unit};
///
/// assert_eq!(Metered::from(Amounts::of(Unit::Tokens, 640)), Metered::SoFar(Amounts::of(Unit::Tokens, 640)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metered {
    /// The amounts so far. Until the end of the body, at least the estimate counts, because the amounts may rise.
    SoFar(Amounts),
    /// The amounts of the whole request. They replace the estimate at once, so that they also count if the caller drops
    /// the body before its end. Many clients do so after the last event of a stream, such as `[DONE]`.
    Final(Amounts),
}

impl From<Amounts> for Metered {
    fn from(amounts: Amounts) -> Self {
        Self::SoFar(amounts)
    }
}

/// Reads the actual amounts of a request from the data of its response body. It receives each part of the data once.
pub(super) type Meter = Box<dyn FnMut(&[u8]) -> Option<Metered> + Send + Sync>;

/// Reads the actual amounts of a request from its response body.
pub(super) struct Metering {
    meter: Meter,
    settlement: Settlement,
    estimate: Amounts,
    /// The last amounts of the meter.
    actual: Option<Amounts>,
}

impl Metering {
    pub(super) fn new(meter: Meter, settlement: Settlement) -> Self {
        Self { meter, estimate: settlement.charged(), settlement, actual: None }
    }

    /// Passes data to the meter. Until the amounts are final, at least the estimate counts.
    pub(super) fn read(&mut self, data: &impl Buf) {
        let mut parts = [IoSlice::new(&[]); MOST_PARTS];
        let number = data.chunks_vectored(&mut parts);
        for part in parts.iter().take(number) {
            let (actual, charged) = match (self.meter)(part) {
                Some(Metered::SoFar(actual)) => (actual, actual.zip(&self.estimate, u32::max)),
                Some(Metered::Final(actual)) => (actual, actual),
                None => continue,
            };
            self.actual = Some(actual);
            self.settlement.settle(charged);
        }
    }

    pub(super) fn end(&mut self) {
        self.actual.into_iter().for_each(|actual| self.settlement.settle(actual));
    }
}

/// The maximum number of parts of one frame that a meter reads. A frame of `Bytes` has one.
const MOST_PARTS: usize = 64;
