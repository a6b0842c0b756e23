use std::{num::NonZeroU32, sync::Arc};

use super::{Refusal, gcra::Bucket, snapshot::Store};
use crate::policy::Quota;

/// The arithmetic of a limiter in this process, in nanoseconds since the queue's origin. Called under the lock of
/// the line, but for what is [`shared`](Self::shared).
pub trait Meter: Send + 'static {
    /// Nothing spent yet, but for what was taken from the `shared` bucket already.
    fn new(quotas: &[Quota], shared: Option<Arc<Bucket>>) -> Self;

    /// A bucket that may also be taken from without the lock; none where that can't be exact.
    fn shared(quotas: &[Quota]) -> Option<Arc<Bucket>>;

    /// Spends `cost` permits of every quota, or none of any.
    fn take(&mut self, cost: NonZeroU32, now: u64) -> bool;

    /// When the last of `total` permits comes free, taken in turn, none before `start`. Never too late; too early
    /// where costs that can't be divided leave a gap.
    fn forecast(&self, start: u64, total: u64) -> u64;

    /// The most permits that can ever be taken at once.
    fn largest(&self) -> u32;

    /// The permits that could be taken at once.
    fn available(&self, now: u64) -> u32;

    /// Nothing is owed under any of the quotas.
    fn is_whole(&self, now: u64) -> bool;

    /// Spends all that is there.
    fn empty(&mut self, now: u64);

    /// Goes on under other quotas. What is spent stays spent, and no more can go at once than before.
    fn change(&mut self, quotas: &[Quota], now: u64);

    /// A moment until which the head, of this `cost`, may sleep to be served together with others, where its permits
    /// are `due` and the `next` one follows: `due` itself, or up to `until` where no permit is lost by it.
    fn gather(&self, cost: u64, due: u64, next: u64, until: u64) -> u64;

    /// When the head looks at the line again by itself, whose permits are `due`: later, or never, where it is called.
    fn look_again(&self, due: u64, _now: u64) -> u64 {
        due
    }

    /// How long it may take to find out when permits come free. Where that is not known yet they are forecast at once.
    fn grace(&self) -> u64 {
        0
    }

    /// What everybody is told now who asks for as much.
    fn closed(&self, _cost: NonZeroU32, _now: u64) -> Option<Refusal> {
        None
    }

    /// How the store stands from which it is filled.
    fn store(&self) -> Option<Store> {
        None
    }
}
