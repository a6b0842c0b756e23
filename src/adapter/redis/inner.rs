//! The state that all clones of a limiter share.

use std::sync::{Arc, Mutex, Weak, atomic::Ordering};

use super::{
    permits::{Permits, REQUESTED, Source, TaskSignal, lock},
    protocol::{Decide, Updates},
    settings::Settings,
};
use crate::{
    clock::{self, Instant},
    limit::{Effect, LocalLimiter, Permit, PermitIssuer, ResponseInfo, core::units::Reported},
    policy::{Amounts, Quota, Taken, nanos},
    random::Random,
};

pub(super) struct Inner {
    pub(super) this: Weak<Self>,
    pub(super) limiter: LocalLimiter,
    permits: Arc<Mutex<Permits>>,
    pub(super) signal: Arc<TaskSignal>,
    pub(super) store: Box<dyn Decide>,
    pub(super) settings: Arc<Settings>,
    pub(super) random: Random,
    /// Identifies this limiter in the store's count of requests in flight.
    pub(super) id: u64,
}

impl Inner {
    pub(super) fn new(store: Box<dyn Decide>, settings: Arc<Settings>) -> Arc<Self> {
        let signal = Arc::new(TaskSignal::default());
        let permits = Arc::new(Mutex::new(Permits::new(&settings, Arc::clone(&signal))));
        let limiter =
            LocalLimiter::from_source(Source(Arc::clone(&permits)), settings.quotas.iter().copied())
                .with(|core| (core.pauses, core.max_in_flight) = (settings.pauses, settings.max_in_flight));
        settings.max_in_flight.map(|max| limiter.admit(max, Some(0)));
        let random = Random::from_entropy();
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            limiter,
            permits,
            signal,
            store,
            settings,
            id: random.next(),
            random,
        })
    }

    /// Calls `work` with the permits and the present.
    pub(super) fn inspect<T>(&self, work: impl FnOnce(&mut Permits, u64) -> T) -> T {
        work(&mut lock(&self.permits), self.limiter.now())
    }

    /// Replaces the store's report on each quota that counts a unit other than requests: the available amount, and the
    /// time until which a request of `amounts` waits.
    pub(super) fn set_units(&self, states: impl IntoIterator<Item = (u64, u64)>, amounts: &Amounts) {
        let report = |(policy, (quota, (left, until))): (_, (&Quota, _))| {
            let needed = amounts.get(quota.unit()).into();
            Reported { policy, unit: quota.unit(), left, used: 0, needed, until, sent_at: 0 }
        };
        let reports = (0..).zip(self.settings.units().zip(states)).map(report).collect();
        self.limiter.locked(|core, _| {
            if let Some(units) = &mut core.units {
                units.reports = reports;
            }
        });
    }

    /// Wakes or starts the task that queries the store.
    pub(super) fn query_now(&self) {
        self.signal.state.fetch_or(REQUESTED, Ordering::SeqCst);
        self.signal.notify.notify_one();
        self.start();
    }

    pub(super) fn pause_until(&self, until: Instant) {
        self.limiter.pause_until(until);
        self.report_pause(until);
    }

    pub(super) fn resume(&self) {
        // Reported first, because a reply to an earlier query may pause the limiter until the update is recorded.
        self.report(|updates, _| {
            (updates.resume, updates.pause_until) = (true, 0);
            updates.gates.clear();
        });
        self.limiter.resume();
    }

    fn report_pause(&self, until: Instant) {
        let wait = nanos(until.saturating_duration_since(clock::now()));
        self.report(|updates, now| updates.pause_until = updates.pause_until.max(now.saturating_add(wait)));
    }

    /// Records an update for the store, and reports it without waiting for the next request.
    fn report(&self, change: impl FnOnce(&mut Updates, u64)) {
        self.inspect(|permits, now| change(&mut permits.session.updates, now));
        self.query_now();
    }
}

/// Applies server limits in this process and reports them to the store. A pause is reported immediately, and remaining
/// permits are reported with the next query.
impl PermitIssuer for Inner {
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        self.limiter.is_expired(permit)
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) -> Effect {
        let effect = self.limiter.completed(permit, response);
        // A permanent rejection does not concern the rate.
        if response.reading.is_permanent() {
            return effect;
        }
        let mut limiting = response.limiting().peekable();
        if limiting.peek().is_some() {
            let (uncounted, disproved) =
                self.limiter.locked(|core, now| (core.uncounted(now), core.disproved()));
            let limiting = limiting.filter(|remaining| !disproved.contains(&remaining.policy()));
            let longest = self.settings.pauses.longest;
            self.inspect(|permits, now| {
                limiting.for_each(|remaining| permits.session.remember(remaining, uncounted, longest, now));
            });
        }
        if effect.pause.is_some() || response.requested_pause().is_some() {
            let snapshot = self.limiter.snapshot();
            // A pause beyond the probe is not reported to the store, because it would then grant no permit for the
            // probe.
            if let Some(until) = snapshot.probe_at.or(snapshot.paused_until) {
                self.report_pause(until);
            }
        }
        effect
    }

    fn dropped(&self, permit: &Permit<'_>) {
        self.limiter.dropped(permit);
    }

    fn counts_in_flight(&self) -> bool {
        self.settings.max_in_flight.is_some()
    }

    fn left_flight(&self, is_cancelled: bool) {
        self.limiter.left_flight(is_cancelled);
        self.query_now();
    }

    fn settled(&self, granted_at: Instant, taken: &Taken, actual: &Amounts) {
        self.limiter.settled(granted_at, taken, actual);
        if self.settings.has_units() {
            self.query_now();
        }
    }
}
