//! Tests of the core. Each test passes the time itself.

mod blocks;
mod changes;
mod feedback;
mod gathering;
mod hostile;
mod in_flight;
mod pauses;
mod priorities;
mod queue;
mod waits;

use std::{num::NonZeroU32, time::Duration};

use super::*;
use crate::policy::{Amounts, Priority, Taken};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const UNBOUNDED: Latest = Latest { max_wait: u64::MAX, deadline: u64::MAX };

const BUCKET: Rule = Rule::TokenBucket;
const PACED: Rule = Rule::PacedWindow;
const WINDOW: Rule = Rule::SlidingWindow;

fn core(rule: Rule, quotas: &[Quota]) -> Core {
    Core::new(quotas, CoreSettings::new(rule))
}

/// A bucket without permits, which refills `burst` permits at `rate` per second, without a margin.
fn refilling(rate: u32, burst: u32) -> Core {
    let mut core = core(BUCKET, &[quota(rate + burst, 1_000, burst)]);
    core.supply.quotas.leave(0, 0);
    core
}

/// A quota without a margin. The window is in milliseconds.
fn quota(limit: u32, window: u64, burst: u32) -> Quota {
    let quota = Quota::new(limit, Duration::from_millis(window)).unwrap();
    quota.with_burst(burst).unwrap().without_margin()
}

fn of(cost: u32, priority: Priority) -> Ask<'static> {
    let cost = NonZeroU32::new(cost).unwrap();
    Ask {
        cost,
        priority,
        latest: UNBOUNDED,
        max_queue: 10_000,
        is_renewed: false,
        is_in_flight: false,
        amounts: &Amounts::NONE,
    }
}

fn one() -> Ask<'static> {
    of(1, Priority::Normal)
}

fn costing(cost: u32) -> Ask<'static> {
    of(cost, Priority::Normal)
}

impl Ask<'_> {
    fn by(self, deadline: u64) -> Self {
        Self { latest: Latest { deadline, ..self.latest }, ..self }
    }

    fn within(self, now: u64, max_wait: u64) -> Self {
        Self { latest: Latest { max_wait: now + max_wait, ..self.latest }, ..self }
    }
}

/// A refusal's reason, and its wait in milliseconds.
fn refused(refusal: &Refusal) -> (Reason, Option<u64>) {
    (refusal.reason(), refusal.wait().map(|wait| wait.as_millis() as u64))
}

impl Core {
    /// Returns the amounts of the first learned unit in flight, and those of accepted requests.
    pub(in crate::limit) fn learned_amounts(&self) -> [u64; 2] {
        let progress = self.learned_units().next().unwrap().progress();
        [progress.in_flight, progress.accepted]
    }

    fn queued(&mut self, ask: Ask, now: u64) -> Ticket {
        match self.submit(ask, now).unwrap() {
            Submitted::Queued(ticket) => ticket,
            Submitted::Granted(grant) => panic!("not queued: {grant:?}"),
        }
    }

    fn refused(&mut self, ask: Ask, now: u64) -> (Reason, Option<u64>) {
        refused(&self.submit(ask, now).unwrap_err())
    }

    fn takes(&mut self, ask: Ask, now: u64) -> bool {
        self.try_submit(ask, now).is_ok()
    }

    /// Advances at each wake-up until `until`. Returns the woken waiters with the times.
    fn run(&mut self, from: u64, until: u64) -> Vec<(u64, Ticket)> {
        let (mut now, mut woken) = (from, Vec::new());
        loop {
            self.advance(now);
            woken.extend(std::iter::from_fn(|| self.pop_woken()).map(|ticket| (now, ticket)));
            match self.next_wake(now) {
                Some(wake) if wake <= until => now = wake.max(now + 1),
                _ => return woken,
            }
        }
    }

    /// As [`run`](Self::run). Each woken waiter collects its permits immediately.
    fn serve_until(&mut self, from: u64, until: u64) -> Vec<(u64, Ticket)> {
        let (mut now, mut granted) = (from, Vec::new());
        loop {
            self.advance(now);
            while let Some(ticket) = self.pop_woken() {
                if let Status::Granted(_) = self.status(ticket, now) {
                    granted.push((now, ticket));
                }
            }
            match self.next_wake(now) {
                Some(wake) if wake <= until => now = wake.max(now + 1),
                _ => return granted,
            }
        }
    }
}
