use std::{
    fmt,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    time::Duration,
};

use super::{
    core::{Core, Demand, Grant, PermitSource},
    feedback::ResponseInfo,
    limiter::{PermitIssuer, PermitRequest},
    permit::Permit,
    shell::{Setup, Shared},
    snapshot::{Effect, Snapshot},
};
use crate::{
    clock::Instant,
    error::Refusal,
    policy::{Amounts, Quota, Taken},
};

/// An in-process limiter: a queue with priorities in front of a rule that grants permits. The rule is one of four:
///
/// | constructor | grants |
/// |---|---|
/// | [`paced_window`](Self::paced_window) | the whole quota, spread over the window. The default of builders and presets |
/// | [`token_bucket`](Self::token_bucket) | the quota without its burst, spread over the window. Needs no log of grants |
/// | [`sliding_window`](Self::sliding_window) | the whole quota in any pattern |
/// | [`adaptive`](Self::adaptive) | at the rate that the server accepts, which the limiter learns |
///
/// ```
/// use tower_outbound::{Quota, limit::LocalLimiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let limiter = LocalLimiter::paced_window(Quota::per_minute(100)?);
/// let permit = limiter.acquire().await?;
/// limiter.set_quotas(Quota::per_minute(300)?);
/// assert_eq!(limiter.snapshot().granted, 1);
/// # Ok(())
/// # }
/// ```
///
/// A constructor takes one quota or several, such as `[ten_per_second, hundred_per_minute]`. A request takes permits of
/// all quotas at once. While it waits, it takes none. Without a quota, only the limits that the server reports apply.
///
/// A grant that need not wait takes one compare-and-swap, if it closely follows other grants and the quota has many
/// permits. Otherwise it takes a lock.
///
/// # Clone
///
/// All clones share the quota and the queue. A setter, such as [`with_initial_burst`](Self::with_initial_burst),
/// returns a new limiter. Call it before the limiter is used or cloned.
///
/// # Features
///
/// | method | [feature](crate#features) |
/// |---|---|
/// | `with_config` | `serde` |
/// | `with_quanta_clock` | `quanta` |
#[derive(Clone)]
pub struct LocalLimiter {
    pub(super) shared: Arc<Shared>,
}

impl LocalLimiter {
    pub(super) fn build_with_source(setup: Setup, source: Box<dyn PermitSource>) -> Self {
        let core = Core::from_source(source, &setup.quotas, setup.settings);
        Self { shared: Arc::new(Shared::from_source(Arc::new(setup), core)) }
    }

    pub(super) fn build(setup: Setup) -> Self {
        Self { shared: Arc::new(Shared::new(Arc::new(setup))) }
    }

    /// Returns the permits that the waiters need from the [source](Self::from_source).
    pub fn demand(&self) -> Demand {
        self.locked(|core, now| core.demand(now))
    }

    /// Returns the present as a time of a [source](Self::from_source).
    pub fn now(&self) -> u64 {
        self.shared.setup.clock.now()
    }

    /// Converts a time of a [source](Self::from_source) to an `Instant` of tokio's timers.
    pub fn instant(&self, time: u64) -> Instant {
        self.shared.setup.clock.timer(time)
    }

    /// Grants the permits that have arrived at the [source](Self::from_source). First refuses the waiters that can no
    /// longer be served in time.
    pub fn source_changed(&self) {
        self.locked(|core, now| core.source_changed(now));
    }

    /// Calls `work` with the core and the present.
    pub(crate) fn locked<T>(&self, work: impl FnOnce(&mut Core, u64) -> T) -> T {
        self.shared.locked(work)
    }

    /// Takes one permit immediately, at [`Priority::Normal`](crate::limit::Priority). Overtakes only waiters of a lower
    /// priority.
    ///
    /// # Errors
    ///
    /// Returns a refusal if no permit is available immediately. The refusal contains the wait that would have been
    /// needed.
    #[inline]
    pub fn try_acquire(&self) -> Result<Permit<'_>, Refusal> {
        self.try_acquire_many(NonZeroU32::MIN)
    }

    /// Takes a number of permits together, immediately, at [`Priority::Normal`](crate::limit::Priority). Overtakes only
    /// waiters of a lower priority.
    ///
    /// # Errors
    ///
    /// Returns a refusal if the permits are not available immediately. The refusal contains the wait that would have
    /// been needed.
    #[inline]
    pub fn try_acquire_many(&self, permits: NonZeroU32) -> Result<Permit<'_>, Refusal> {
        let granted_at = self.shared.try_take(permits)?;
        Ok(Permit::borrowed(&self.shared, permits, granted_at))
    }

    /// Like [`try_acquire`](Self::try_acquire), but the permit is `'static`.
    ///
    /// # Errors
    ///
    /// Returns a refusal if no permit is available immediately. The refusal contains the wait that would have been
    /// needed.
    pub fn try_acquire_owned(&self) -> Result<Permit<'static>, Refusal> {
        let granted_at = self.shared.try_take(NonZeroU32::MIN)?;
        let grant = Grant::new(granted_at, NonZeroU32::MIN);
        Ok(Permit::shared(Arc::clone(&self.shared), grant, &Amounts::NONE))
    }

    /// Grants the permits of a request now, without overtaking a waiter. Returns `None`, and counts no refusal, if it
    /// cannot.
    pub(crate) fn grant_now(&self, request: &PermitRequest) -> Option<Permit<'static>> {
        let grant = Grant::new(self.shared.grant_now(request)?, request.cost());
        Some(Permit::shared(Arc::clone(&self.shared), grant, request.amounts()))
    }

    /// Replaces the quotas. Permits already spent still count, so a larger burst becomes available gradually.
    ///
    /// - If the new window is longer, it also counts the grants of the previous window. A token bucket has no log of its
    ///   grants. Its new quota therefore counts only those that the bucket has not refilled.
    /// - If the limiter had no quota and has granted permits, the burst counts as spent, because they are in no log.
    ///   The first quota of another unit does not count earlier amounts.
    /// - A waiter whose cost exceeds the new quotas is refused.
    /// - A learned rate above the new quotas is lowered to them, and applies again when the quotas are raised, unless
    ///   the limiter has learned another rate.
    /// - A pause and the empty quotas that the server has reported stay. [`resume`](Self::resume) discards them.
    /// - A [`Keyed`](super::Keyed#memory) keeps a key while `make` would create its limiter with other quotas.
    pub fn set_quotas(&self, quotas: impl IntoIterator<Item = Quota>) {
        let quotas: Vec<_> = quotas.into_iter().collect();
        self.locked(|core, now| {
            core.set_quotas(&quotas, now);
            core.changed_quotas = Some(Box::new(quotas.into()));
        });
    }

    /// Replaces the quotas, and the settings that can change while the limiter is in use. Without a quota, the limiter
    /// learns the rate from now on.
    #[cfg(feature = "client")]
    pub(crate) fn reconfigure(&self, quotas: &[Quota], settings: &super::core::CoreSettings) {
        self.locked(|core, now| core.reconfigure(quotas, settings, now));
    }

    /// Returns the current settings.
    pub(crate) fn settings(&self) -> super::core::CoreSettings {
        self.locked(|core, _| core.settings(self.shared.setup.settings))
    }

    /// Pauses the limiter until `until`. Extends a current pause, but never shortens it. The
    /// [longest pause](Self::with_longest_pause) does not apply.
    pub fn pause_until(&self, until: Instant) {
        let until = self.shared.setup.clock.at(until);
        self.locked(|core, now| core.pause(until, now));
    }

    /// Lifts a pause, discards the remaining permits that the server reported, and forgets the learned rate if the
    /// server has reported a quota.
    pub fn resume(&self) {
        self.locked(Core::resume);
    }

    /// Returns how long a new request is expected to wait, and how long it would wait if no other request waited.
    /// Without a forecast, these are at least 100 ms. Returns `None` if the request would be refused.
    pub(crate) fn expected_wait(&self, request: &PermitRequest) -> Option<[Duration; 2]> {
        self.locked(|core, now| {
            core.advance(now);
            let expected = core.expected(&self.shared.ask(request, now), now)?;
            Some(expected.map(|due| Duration::from_nanos(due.saturating_sub(now))))
        })
    }

    /// Returns whether no amount exceeds the limit of a quota.
    pub(crate) fn fits(&self, amounts: &Amounts) -> bool {
        self.locked(|core, _| core.fits(amounts))
    }

    /// Returns the current state, for diagnostics and metrics.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot()
    }

    /// Returns whether the limiter is equivalent to a new one with the same quotas: no permit is spent, no request is
    /// queued, no server limit applies, and no other clone and no permit of the limiter exist.
    pub(super) fn is_idle(&self) -> bool {
        // The holder of another clone or of a permit may be about to use the limiter.
        if Arc::strong_count(&self.shared) > 1 {
            return false;
        }
        // Makes the grants of dropped clones visible to this thread.
        fence(Ordering::Acquire);
        self.shared.is_idle()
    }

    /// Returns whether [`set_quotas`](Self::set_quotas) was called.
    pub(super) fn has_changed_quotas(&self) -> bool {
        !self.shared.is_unused() && self.locked(|core, _| core.changed_quotas.is_some())
    }

    /// Returns the current quotas.
    pub(super) fn quotas(&self) -> Box<[Quota]> {
        let changed = self.locked(|core, _| core.changed_quotas.clone());
        changed.map_or_else(|| self.shared.setup.quotas.clone(), |changed| *changed)
    }

    /// Prepares the limiter for one key of many. Limiters with the same quotas and settings share one setup.
    pub(super) fn for_key(mut self, setups: &mut Vec<Arc<Setup>>) -> Self {
        // A limiter with other clones is in use, and keeps its own setup.
        if let Some(own) = Arc::get_mut(&mut self.shared) {
            match setups.iter().find(|setup| setup.is_same(&own.setup)) {
                // The next new limiter of the key will have the same quotas.
                _ if !own.is_unused() => own.locked(|core, _| core.changed_quotas = None),
                Some(setup) => own.setup = Arc::clone(setup),
                None if setups.len() < MOST_SETUPS => setups.push(Arc::clone(&own.setup)),
                None => {}
            }
        }
        self
    }

    fn time(&self, permit: &Permit<'_>) -> u64 {
        self.shared.setup.clock.since_origin(permit.granted_at())
    }
}

/// Lets a limiter of one's own, which wraps this limiter, receive the outcomes of the permits.
impl PermitIssuer for LocalLimiter {
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        self.shared.is_expired(self.time(permit))
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) -> Effect {
        let grant = (permit.cost(), self.time(permit));
        self.shared.completed(grant, permit.sent_at(), response, permit.taken())
    }

    fn dropped(&self, permit: &Permit<'_>) {
        let grant = (permit.cost(), self.time(permit));
        self.shared.dropped(grant, permit.sent_at().is_some(), permit.taken());
    }

    fn counts_in_flight(&self) -> bool {
        self.shared.limits_in_flight()
    }

    fn left_flight(&self, is_cancelled: bool) {
        self.shared.end_in_flight(is_cancelled);
    }

    fn settled(&self, granted_at: Instant, taken: &Taken, actual: &Amounts) {
        // The amounts were taken up to this time before the permit was collected.
        let collected_at = self.shared.setup.clock.since_origin(granted_at);
        self.locked(|core, now| {
            let taken_at = core.earliest_taken(collected_at);
            core.settle(taken_at, taken, actual, now);
        });
    }
}

impl fmt::Debug for LocalLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalLimiter").field("snapshot", &self.snapshot()).finish_non_exhaustive()
    }
}

/// The maximum number of setups that the limiters of a shard share. Each serves the keys of one quota.
const MOST_SETUPS: usize = 4;
