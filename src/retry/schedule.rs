use std::{fmt, sync::Arc, time::Duration};

use crate::policy::{Cause, ExponentialBackoff, backoff::scatter};

/// Makes the back-offs of each call, in order; where they end, so do the attempts.
///
/// A function that makes an iterator is one. The features `backoff` and `backon` make one of those crates' own types;
/// see [`adapter`](crate::adapter).
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::retry::RetryLayer;
///
/// // 1 s, 2 s and 3 s, and then no more.
/// let layer = RetryLayer::new()
///     .with_max_attempts(u32::MAX)?
///     .with_schedule(|| (1..=3).map(Duration::from_secs));
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a schedule of back-offs",
    label = "not a `Schedule`",
    note = "a closure that makes an iterator of `Duration`s is one: `|| [1, 2, 4].into_iter().map(Duration::from_secs)`; an `ExponentialBackoff` goes to `with_backoff`"
)]
pub trait Schedule: Send + Sync {
    /// The back-offs of one call.
    fn delays(&self) -> Delays;
}

/// The back-offs of one call.
pub type Delays = Box<dyn Iterator<Item = Duration> + Send>;

impl<F, I> Schedule for F
where
    F: Fn() -> I + Send + Sync,
    I: Iterator<Item = Duration> + Send + 'static,
{
    fn delays(&self) -> Delays {
        Box::new(self())
    }
}

/// The layer's, for one cause.
#[derive(Clone)]
pub(super) enum Backoff {
    Exponential(ExponentialBackoff),
    Other(Arc<dyn Schedule>),
}

/// The iterators of one call, each made when it is first asked.
#[derive(Default)]
pub(super) struct Used {
    transient: Option<Delays>,
    throttled: Option<Delays>,
}

/// A back-off, and what may be added to it where the server asked for more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delay {
    pub(super) own: Duration,
    pub(super) spread: Duration,
}

impl Backoff {
    /// The back-off before retry number `retry`, from 0; none where the schedule is at its end.
    pub(super) fn next(&self, used: &mut Used, cause: Cause, retry: u32, random: u64) -> Option<Delay> {
        match self {
            Self::Exponential(backoff) => {
                Some(Delay { own: backoff.delay(retry, random), spread: backoff.spread(retry, random) })
            }
            Self::Other(schedule) => {
                let slot = match cause {
                    Cause::Throttled => &mut used.throttled,
                    Cause::Transient => &mut used.transient,
                };
                let own = slot.get_or_insert_with(|| schedule.delays()).next()?;
                // Of a jitter of its own nothing is known: half of the back-off spreads as well as ours does.
                Some(Delay { own, spread: scatter(own / 2, random) })
            }
        }
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exponential(backoff) => backoff.fmt(f),
            Self::Other(_) => f.write_str("Schedule"),
        }
    }
}
