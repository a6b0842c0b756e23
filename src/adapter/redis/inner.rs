//! The state that all clones of a limiter share.

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex, Weak, atomic::Ordering},
};

use super::{
    permits::{Permits, REQUESTED, Source, TaskSignal, lock},
    protocol::{Decide, MAX_PERMITS, Query},
    session::Session,
    settings::Settings,
};
use crate::{
    clock::{self, Instant},
    limit::{Demand, Effect, LocalLimiter, Permit, PermitIssuer, ResponseInfo, core::units::Reported},
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
        self.report(Session::resume);
        self.limiter.resume();
    }

    fn report_pause(&self, until: Instant) {
        let wait = nanos(until.saturating_duration_since(clock::now()));
        self.report(|Session { updates, .. }, now| {
            updates.pause_until = updates.pause_until.max(now.saturating_add(wait));
        });
    }

    /// Records an update for the store, and reports it without waiting for the next request.
    fn report(&self, change: impl FnOnce(&mut Session, u64)) {
        self.inspect(|permits, now| change(&mut permits.session, now));
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

/// The resolution of timers: 1 ms in nanoseconds.
const TICK: u64 = 1_000_000;

/// What the task does next.
pub(super) enum Next {
    Query(Query),
    Wait(Instant),
    Stop,
}

impl Inner {
    pub(super) fn next(&self) -> Next {
        let (demand, flight) = (self.limiter.demand(), self.limiter.flight());
        let mut next = self.inspect(|permits, now| {
            // Amounts are fetched only for the first waiter, so further permits alone would admit no waiter.
            let is_single = self.settings.has_units();
            if is_single && demand.head.is_none() {
                permits.return_amounts();
            }
            // Without a lease, no permit is kept for a request that has not arrived.
            let is_kept = demand.head.is_some() || self.settings.lease > 1;
            let in_hand = if is_kept { permits.in_hand(now) } else { 0 };
            let report_at = permits.session.counted.report_at(&flight, in_hand, demand.head.is_some(), now);
            let report_at = if permits.is_lost() { report_at.and(Some(permits.query_at)) } else { report_at };
            let is_full = flight.admitted == Some(0) && flight.renewing == 0;
            let urgent = permits.session.has_urgent_updates(now) || report_at.is_some_and(|at| at <= now);
            // The next query is planned for the time when `unit` permits and their amounts are available together. Less
            // may be available earlier.
            let (unit, amounts) = permits.free.map_or((0, Amounts::NONE), |free| (free.unit, free.amounts));
            let smaller = !amounts.minus(&demand.amounts).is_empty();
            let smaller = demand.head.is_some_and(|head| head.get() < unit || smaller);
            let at = if !permits.is_lost() && (urgent || smaller) { 0 } else { permits.query_at };
            let short = demand.head.is_some_and(|head| {
                permits.is_lost()
                    || is_full
                    || !permits.will_serve(head, &demand.amounts, now)
                    || !is_single && demand.permits > in_hand
            });
            // While this process uses its share, requests rarely wait. A due query is therefore sent even if no request
            // waits, to find out whether the store replies again.
            let probe = permits.is_lost() && now >= at;
            // If the store does not reply, the task does not wait for the next query only to report updates.
            let idle = permits.is_lost() && demand.head.is_none() && now < at;
            if idle || !short && !urgent && !probe {
                // The requests in flight are reported again before they expire in the store.
                let Some(at) = report_at else { return Next::Stop };
                permits.listening = u32::MAX;
                return Next::Wait(self.limiter.instant(at.min(permits.next_expiry(now))));
            }
            if now < at {
                permits.listening = if is_single { u32::MAX } else { unit };
                let report_at = report_at.map_or(u64::MAX, |at| at.min(permits.next_expiry(now)));
                let until = demand.last.map_or(at, |last| at.min(last)).min(report_at);
                return Next::Wait(self.limiter.instant(until.max(now.saturating_add(TICK))));
            }
            let (want, unit) = plan_query(permits, demand, now, (self.settings.lease, is_single, is_full));
            let longest = nanos(self.settings.longest());
            // A waiter that already has its permits, and needs no block, stays admitted.
            let usable = match want {
                0 if is_single => i64::from(demand.head.is_some()),
                _ if unit == 1 && !is_single => i64::try_from(in_hand).unwrap_or(i64::MAX),
                _ => 0,
            };
            let spare = usable.saturating_sub(flight.renewing.into());
            Next::Query(Query {
                want,
                unit,
                amounts: if want > 0 { demand.amounts } else { Amounts::NONE },
                now,
                known: permits.session.known,
                share_used: permits.share().map(|share| share.used(now, longest)),
                flight: permits.session.counted.report(self.id, spare),
                updates: permits.session.next_updates(now),
            })
        });
        if let Next::Query(query) = &mut next {
            // Until the reply arrives, the limiter admits no further request. The reply has the new number.
            query.flight.requests = self.admit(query.share_used.is_none().then_some(0));
        }
        next
    }

    /// Lets the limiter admit `further` requests. `None` while the process uses its share of the limit: the limiter then
    /// admits that share. Returns the number in flight.
    pub(super) fn admit(&self, further: Option<u32>) -> u32 {
        let Some(max) = self.settings.max_in_flight else { return 0 };
        let processes = if further.is_some() { 1 } else { self.settings.processes };
        let max = NonZeroU32::new(max.get() / processes).unwrap_or(NonZeroU32::MIN);
        self.limiter.admit(max, further)
    }
}

/// Returns how many blocks the next query requests, and how many permits each block contains. The permits of a block
/// become available together.
fn plan_query(
    permits: &mut Permits,
    demand: Demand,
    now: u64,
    (lease, is_single, is_full): (u32, bool, bool),
) -> (u32, u32) {
    let Some(head) = demand.head else { return (0, 1) };
    // If the store has failed, the query requests the permits of only one waiter, to test whether the store replies in
    // time. A waiter needs all its permits together, so the query requests them as one block.
    let is_served = !permits.is_lost() && permits.will_serve(head, &demand.amounts, now);
    if permits.is_lost() || is_single && is_full || (is_single || head.get() > 1) && !is_served {
        return (1, head.get());
    }
    if is_single {
        return (0, 1);
    }
    // The lease doubles if all of its permits were used. Otherwise it shrinks by the number of unused permits.
    let (unused, last) = (std::mem::take(&mut permits.unused), permits.session.lease.max(1));
    permits.session.lease =
        if unused > 0 { last.saturating_sub(unused).max(1) } else { last.saturating_mul(2).min(lease) };
    let missing = demand.permits.max(u64::from(permits.session.lease)).saturating_sub(permits.in_hand(now));
    (missing.clamp(1, MAX_PERMITS.into()) as u32, 1)
}
