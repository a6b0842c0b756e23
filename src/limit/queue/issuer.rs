//! Implements [`PermitIssuer`] for the queue. The queue determines whether its permits have expired, and receives their
//! outcomes.

use super::{Queue, sync::Ordering};
use crate::{
    limit::{
        algorithm::Algorithm,
        permit::{Permit, PermitIssuer, ResponseInfo},
        snapshot::Learned,
    },
    policy::{
        adaptive::{Acceptance, Observation},
        nanos,
    },
};

impl<A: Algorithm> PermitIssuer for Queue<A> {
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        self.locked(|list, _| {
            let now = self.fast.clock().now();
            let held = now.saturating_sub(self.fast.clock().since_origin(permit.granted_at()));
            self.is_expired_in(list, held, now)
        })
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) -> Option<Learned> {
        if A::learns() {
            return self.learn(permit, response);
        }
        // Releases the permits before it applies the response, because the server has already subtracted this request
        // from the remaining permits that it reports.
        self.fast.release(permit.cost());
        let obeys_remaining = self.obeys_remaining(response);
        if response.requested_pause().is_none() && !obeys_remaining {
            return None;
        }
        let requested = response.requested_pause().map(nanos);
        let remaining = if obeys_remaining { response.remaining() } else { &[] };
        self.locked(|list, wakes| {
            let now = self.fast.clock().now();
            list.expire_uncollected(&self.fast, now, wakes);
            let uncounted = self.fast.in_flight().saturating_add(list.unconfirmed.permits(now));
            if list.server.apply(requested, remaining, now, uncounted) {
                list.apply_server(&self.fast, wakes);
            }
        });
        None
    }

    #[inline]
    fn dropped(&self, permit: &Permit<'_>) {
        if A::learns() || permit.sent_at().is_some() {
            self.dropped_locked(permit);
        } else {
            self.fast.release(permit.cost());
        }
    }
}

impl<A: Algorithm> Queue<A> {
    /// Returns whether the remaining permits of this response apply. If the limiter has a quota, they apply only if the
    /// response is throttled or `obeys_remaining` is set.
    fn obeys_remaining(&self, response: &ResponseInfo<'_>) -> bool {
        (response.is_throttled()
            || self.fast.reads_headers.load(Ordering::Acquire)
            || self.fast.obeys_remaining.load(Ordering::Acquire))
            && !response.remaining().is_empty()
    }

    /// Not inlined, so that [`dropped`](PermitIssuer::dropped) stays short for permits that need no lock.
    #[inline(never)]
    fn dropped_locked(&self, permit: &Permit<'_>) {
        let is_sent = permit.sent_at().is_some();
        self.locked(|list, wakes| {
            let now = self.fast.clock().now();
            if is_sent {
                list.unconfirmed.add(u64::from(permit.cost().get()), now);
            }
            if list.lose(self.fast.clock().since_origin(permit.granted_at()), is_sent, now) {
                list.wake_head(now, wakes);
            }
            list.release_without_acceptance(&self.fast, permit.cost());
        });
    }

    /// Passes a response to the learner, and returns the learned rate if it has changed. An accepted response without
    /// relevant headers needs no lock if no server limit applies.
    fn learn(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) -> Option<Learned> {
        let (fast, acceptance) = (&self.fast, response.acceptance());
        let is_accepted = acceptance == Acceptance::Accepted;
        if is_accepted {
            fast.release(permit.cost());
        }
        let obeys_remaining = fast.obeys_remaining.load(Ordering::Acquire);
        let reads_headers = obeys_remaining || fast.reads_headers.load(Ordering::Acquire);
        let is_ordinary = is_accepted
            && response.requested_pause().is_none()
            && (!reads_headers || response.remaining().is_empty())
            && !fast.is_limited.load(Ordering::Acquire)
            && !fast.has_news.load(Ordering::Acquire);
        if is_ordinary {
            return None;
        }
        // Parsed before the lock is taken.
        let (requested, remaining) = (response.requested_pause().map(nanos), response.remaining());
        self.locked(|list, wakes| {
            if !is_accepted {
                list.release_without_acceptance(fast, permit.cost());
            }
            let now = fast.clock().now();
            let granted_at = fast.clock().since_origin(permit.granted_at());
            let sent_at = permit.sent_at().map_or(granted_at, |sent_at| fast.clock().since_origin(sent_at));
            let observation =
                Observation { acceptance, granted_at, sent_at, requested_pause: requested, remaining };
            list.expire_uncollected(fast, now, wakes);
            let uncounted = fast.in_flight().saturating_add(list.unconfirmed.permits(now));
            let progress = list.progress(fast);
            let learner = list.algorithm.learner_mut()?;
            let before = (learner.interval(), learner.is_probing());
            let pause = learner.observe(&observation, progress, now);
            let is_changed = before != (learner.interval(), learner.is_probing());
            let has_news = learner.take_change() | fast.has_news.swap(false, Ordering::AcqRel);
            let learned = if has_news { self.learned(learner) } else { None };
            let obeyed = if obeys_remaining { remaining } else { &[] };
            let is_stricter = list.server.apply(requested, obeyed, now, uncounted)
                | pause.is_some_and(|until| list.server.pause(until, now));
            if is_changed || is_stricter {
                list.refuse_late(fast, 0, wakes);
                list.wake_head(now, wakes);
            }
            learned
        })
    }
}
