//! The state of a core, as the limiter and its users read it.

use std::time::Duration;

use super::Core;
#[cfg(any(test, feature = "test-util"))]
use super::{Stage, Ticket};
use crate::{
    limit::snapshot::{Learned, Snapshot},
    policy::{Priority, adaptive::Learner},
};

impl Core {
    /// Returns whether a refusal of a request for one permit applies to all others until its wait is over: no request
    /// waits, and no store, no learner and no probe may change its mind.
    pub fn refuses_all(&self) -> bool {
        self.queue.is_settled()
            && !self.is_stored()
            && self.supply.learner().is_none()
            && !self.server.pause.is_long()
            && self.in_flight.is_none()
            && self.units.is_none()
    }

    /// Returns whether the limiter is in the state of a new limiter with the same quotas.
    pub fn is_idle(&mut self, now: u64) -> bool {
        self.supply.is_whole(now)
            && !(self.server.any() && self.server.tidy(now))
            && self.server.unconfirmed.permits(now) == 0
            && self.queue.len(Priority::COUNT) == 0
            && self.units.as_ref().is_none_or(|units| units.is_whole(now))
            && self.requests_in_flight(now).is_none_or(|requests| requests == 0)
    }

    #[cfg(any(test, feature = "test-util"))]
    pub fn snapshot(&self, now: u64) -> Snapshot<u64> {
        self.snapshot_with(now, |at| at)
    }

    /// Returns the state at `now`. `time` converts its times.
    pub fn snapshot_with<T>(&self, now: u64, time: impl Fn(u64) -> T) -> Snapshot<T> {
        let left = self.server.left(now).unwrap_or(u64::MAX).min(self.supply.available(now));
        let available = u32::try_from(left).unwrap_or(u32::MAX);
        let requests_in_flight = self.requests_in_flight(now);
        let is_full = self.in_flight.as_ref().is_some_and(|it| it.requests(now) >= it.max.get());
        let timed = |learned: Learned<u64>| learned.with_times(&time);
        Snapshot {
            available: if self.server.pause.is_on(now) || is_full { 0 } else { available },
            queued: self.queue.len(Priority::COUNT),
            paused_until: self.server.pause.end(now).map(&time),
            probe_at: self.server.pause.probe_at(now).map(&time),
            quota: self.server.delaying(now, self.queue.total().max(1)),
            other_quotas: self.server.others_at(now),
            granted: self.granted,
            refused: self.refused,
            awaiting_response: self.permits_in_flight(),
            requests_in_flight,
            units: self.units.iter().flat_map(|units| units.states(now)).collect(),
            delayed_by: self.head().and_then(|head| self.delaying_unit(self.due(&head, now), now)),
            learned: self.learned().map(timed),
            learned_units: self.learners().skip(1).filter_map(learned_by).map(timed).collect(),
        }
    }

    pub(super) fn learned(&self) -> Option<Learned<u64>> {
        learned_by(self.supply.learner()?)
    }

    /// Returns the policies whose empty quotas do not apply, because the server does not enforce them.
    #[allow(dead_code, reason = "only a store of permits, such as Redis, reads them")]
    pub(crate) fn disproved(&self) -> Vec<u64> {
        self.server.disproved.clone()
    }
}

fn learned_by(learner: &Learner) -> Option<Learned<u64>> {
    learner.rate.map(|_| Learned {
        unit: learner.unit,
        interval: Duration::from_nanos(learner.interval()),
        quota: learner.quota(),
        source: learner.source,
        throttled_at: learner.throttled_at,
    })
}

/// The state that the simulation of the test kit reads.
#[cfg(any(test, feature = "test-util"))]
impl Core {
    /// Returns the stage of a ticket that has not ended.
    pub fn stage(&self, ticket: Ticket) -> Option<&Stage> {
        self.queue.find(ticket).map(|(_, stage, _)| stage)
    }

    /// Returns the number of slots of the queue that are in use, and of all.
    pub fn slots(&self) -> (usize, usize) {
        (self.queue.slots.used as usize, self.queue.slots.len())
    }
}
