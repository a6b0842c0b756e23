use std::{fmt, sync::Arc, time::Duration};

use crate::policy::{ExponentialBackoff, backoff::scatter, retry::Delay};

/// A custom sequence of delays that replaces an [`ExponentialBackoff`].
///
/// A closure that returns an iterator implements this trait. [`adapter`](crate::adapter) shows a closure for the
/// `backon` crate. The feature `backoff` adapts the policies of the `backoff` crate.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::retry::RetryLayer;
///
/// // Waits 1 s, 2 s and 3 s, then returns the failure.
/// let layer = RetryLayer::new()
///     .with_max_attempts(u32::MAX)?
///     .with_custom_backoff(|| (1..=3).map(Duration::from_secs));
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a custom backoff",
    label = "not a `Backoff`",
    note = "a closure that returns an iterator of `Duration`s implements it: `|| [1, 2, 4].into_iter().map(Duration::from_secs)`; pass an `ExponentialBackoff` to `with_backoff`"
)]
pub trait Backoff: Send + Sync {
    /// Returns the delays of one call in order. When the iterator ends, the call makes no further attempt.
    fn delays(&self) -> Box<dyn Iterator<Item = Duration> + Send>;
}

impl<F, I> Backoff for F
where
    F: Fn() -> I + Send + Sync,
    I: Iterator<Item = Duration> + Send + 'static,
{
    fn delays(&self) -> Box<dyn Iterator<Item = Duration> + Send> {
        Box::new(self())
    }
}

/// The backoff that a retry layer uses for one kind of failure, transient or throttled.
#[derive(Clone)]
pub(super) enum AnyBackoff {
    Exponential(ExponentialBackoff),
    Custom(Arc<dyn Backoff>),
}

/// The remaining delays of a custom backoff in one call. `None` until the first delay is used. Boxed twice, because each
/// call stores two of them and few calls use one.
pub(super) type RemainingDelays = Option<Box<Box<dyn Iterator<Item = Duration> + Send>>>;

impl AnyBackoff {
    /// Returns the remaining delays of a call that has made this many retries. An exponential backoff stores no delays.
    pub(super) fn remaining(&self, retries: u32) -> RemainingDelays {
        let Self::Custom(backoff) = self else { return None };
        let mut delays = backoff.delays();
        delays.by_ref().take(retries as usize).for_each(drop);
        Some(Box::new(delays))
    }

    /// Returns the delay before retry number `retry`, counted from 0. Returns `None` after the end of a custom backoff.
    pub(super) fn next(&self, delays: &mut RemainingDelays, retry: u32, random: u64) -> Option<Delay> {
        match self {
            Self::Exponential(backoff) => {
                Some(Delay { own: backoff.delay(retry, random), spread: backoff.spread(retry, random) })
            }
            Self::Custom(backoff) => {
                let own = delays.get_or_insert_with(|| Box::new(backoff.delays())).next()?;
                // The jitter of a custom backoff is unknown, so a random time of up to half the backoff is added to a
                // requested delay.
                Some(Delay { own, spread: scatter(own / 2, random) })
            }
        }
    }
}

impl fmt::Debug for AnyBackoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exponential(backoff) => backoff.fmt(f),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}
