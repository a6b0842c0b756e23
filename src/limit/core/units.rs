//! The quotas of tokens, points and other units. A request takes an estimated amount of each, which is settled when its
//! actual amount is known.

use std::cell::Cell;

use super::{amount_log::AmountLog, gcra::Gcra, queued_amounts::WaiterAmounts, quotas::Spread};
use crate::policy::{Amounts, Quota, Remaining, Totals, Unit, nanos};

/// The quotas of a limiter that count other units than requests.
#[derive(Debug, Clone)]
pub(super) struct Units {
    quotas: Vec<UnitQuota>,
    spread: Spread,
    /// The unit that determined the last forecast, and the forecast.
    delaying: Cell<Option<(u64, Unit)>>,
}

/// The amounts of one quota.
#[derive(Debug, Clone)]
struct UnitQuota {
    quota: Quota,
    log: AmountLog,
    /// Spreads the amounts over the window. The log enforces the limit, so amounts returned to this bucket cannot exceed it.
    pace: Option<Gcra>,
    /// The amount that the server has reported as remaining, and its reset.
    reported: Option<(u64, u64)>,
}

/// The state of a quota that counts a unit other than requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitState {
    /// What the quota counts.
    pub unit: Unit,
    /// The limit of the quota.
    pub limit: u32,
    /// The amount that the window still has room for. A burst can allow less at once. Zero if the amounts in the window
    /// reach or exceed the limit.
    pub available: u32,
}

impl UnitQuota {
    fn new(quota: Quota, spread: Spread) -> Self {
        let log = AmountLog::new(&quota);
        let pace =
            (spread != Spread::SlidingWindow).then(|| Gcra::new(log.window / log.limit, quota.burst()));
        Self { quota, log, pace, reported: None }
    }

    /// Returns the amount that a request of this estimate takes.
    fn own(&self, amounts: &Amounts) -> u64 {
        u64::from(amounts.get(self.quota.unit())).min(self.log.limit)
    }

    /// Returns when `own` is available behind the amounts of `ahead`.
    fn due(&self, start: u64, ahead: u64, own: u64) -> u64 {
        let due = self.log.due(start, ahead.saturating_add(own));
        // An amount above the burst waits until the bucket is full.
        let most = own.min(self.quota.burst().into());
        let paced = self.pace.as_ref().map_or(start, |pace| pace.due(start, ahead.saturating_add(most)));
        let reported = self.reported.filter(|(left, _)| *left < ahead.saturating_add(own));
        due.max(paced).max(reported.map_or(start, |(_, until)| until))
    }

    fn take(&mut self, at: u64, own: u64, now: u64) {
        if let Some(pace) = &mut self.pace {
            // As in a paced window of requests, the refill starts when the log has room for this amount.
            let freed = self.log.due(0, own);
            let spent = pace.interval.saturating_mul(own);
            let refill_from =
                if freed > 0 { freed.saturating_add(pace.whole.saturating_sub(spent)) } else { 0 };
            pace.take(at.max(refill_from), own);
        }
        self.charge(own, now);
    }

    fn charge(&mut self, amount: u64, now: u64) {
        self.log.add(now, amount);
        self.reported = self.reported.filter(|(_, until)| now < *until);
        self.reported.iter_mut().for_each(|(left, _)| *left = left.saturating_sub(amount));
    }

    /// Applies the remaining amount of a response whose request was sent at `sent_at`. Subtracts the amounts granted later,
    /// because the server may not have counted them. Until the reset, a report can only lower the amount.
    fn report(&mut self, remaining: &Remaining, sent_at: u64, now: u64) {
        let left = remaining.left().saturating_sub(self.log.since(sent_at));
        let until = now.saturating_add(nanos(remaining.reset_after()));
        self.reported = match self.reported.filter(|(_, until)| now < *until) {
            Some((known, end)) if known < left => Some((known, end)),
            Some((_, end)) => Some((left, end.max(until))),
            None => Some((left, until)),
        };
    }
}

impl Units {
    /// Returns `None` if no quota counts a unit other than requests.
    pub(super) fn new(quotas: &[Quota], spread: Spread) -> Option<Box<Self>> {
        let own: Vec<_> = quotas.iter().filter(|quota| quota.unit() != Unit::Requests).collect();
        let quotas: Vec<_> = own.iter().map(|quota| UnitQuota::new(**quota, spread)).collect();
        (!quotas.is_empty()).then(|| Box::new(Self { quotas, spread, delaying: Cell::new(None) }))
    }

    /// Returns the amounts of a request that waits.
    pub(super) fn of_waiter(&self, own: Amounts) -> WaiterAmounts {
        WaiterAmounts { own, limits: self.limits() }
    }

    /// Returns when the amounts of a request are available behind those of `ahead`.
    pub(super) fn due(&self, start: u64, ahead: &Totals, amounts: &Amounts) -> u64 {
        let due = |it: &UnitQuota| {
            let (unit, own) = (it.quota.unit(), it.own(amounts));
            (own > 0).then(|| (it.due(start, ahead.get(unit), own), unit))
        };
        let last = self.quotas.iter().filter_map(due).max_by_key(|(due, _)| *due);
        self.delaying.set(last);
        last.map_or(start, |(due, _)| due.max(start))
    }

    /// Returns the unit that determined the last forecast, if that was `due`.
    pub(super) fn delaying(&self, due: u64) -> Option<Unit> {
        self.delaying.get().filter(|(last, _)| *last == due).map(|(_, unit)| unit)
    }

    /// Returns the lowest limit of each unit. The limit is zero for a unit without a quota, so its amounts are ignored.
    pub(super) fn limits(&self) -> Amounts {
        let limit = |limits: Amounts, it: &UnitQuota| {
            let known = Some(limits.get(it.quota.unit())).filter(|known| *known > 0);
            limits.with(it.quota.unit(), known.map_or(it.quota.limit(), |known| known.min(it.quota.limit())))
        };
        self.quotas.iter().fold(Amounts::default(), limit)
    }

    /// Takes the amounts of a request that leaves now. The buckets count it as if it left at `at`.
    pub(super) fn take(&mut self, at: u64, amounts: &Amounts, now: u64) {
        for quota in &mut self.quotas {
            let own = quota.own(amounts);
            quota.take(at, own, now);
        }
    }

    /// Replaces the amounts that a request took at `taken`. Returns whether it takes more of a unit than before.
    pub(super) fn settle(&mut self, taken: u64, charged: &Amounts, actual: &Amounts, now: u64) -> bool {
        let mut is_more = false;
        for quota in &mut self.quotas {
            let (charged, actual) = (quota.own(charged), quota.own(actual));
            let (more, less) = (actual.saturating_sub(charged), charged.saturating_sub(actual));
            if more > 0 {
                quota.pace.iter_mut().for_each(|pace| pace.take(now, more));
                quota.charge(more, now);
                is_more = true;
            }
            if less > 0 {
                quota.log.give_back(taken, less, now);
                quota.pace.iter_mut().for_each(|pace| pace.give_back(less));
            }
        }
        is_more
    }

    /// Applies the remaining amounts of a response whose request was sent at `sent_at`.
    pub(super) fn report(&mut self, remaining: &[Remaining], sent_at: u64, now: u64) {
        for quota in &mut self.quotas {
            let unit = quota.quota.unit();
            let reports = remaining.iter().filter(|reported| reported.unit() == unit);
            reports.for_each(|reported| quota.report(reported, sent_at, now));
        }
    }

    /// Discards what the server reported.
    pub(super) fn forget_reports(&mut self) {
        self.quotas.iter_mut().for_each(|quota| quota.reported = None);
    }

    pub(super) fn is_whole(&self, now: u64) -> bool {
        let is_whole = |it: &UnitQuota| {
            it.log.available(now) == it.log.limit && it.pace.as_ref().is_none_or(|pace| pace.arrival <= now)
        };
        self.quotas.iter().all(is_whole)
    }

    pub(super) fn states(&self, now: u64) -> impl Iterator<Item = UnitState> {
        self.quotas.iter().map(move |it| {
            let reported = it.reported.filter(|(_, until)| now < *until).map_or(u64::MAX, |(left, _)| left);
            let available = u32::try_from(it.log.available(now).min(reported)).unwrap_or(u32::MAX);
            UnitState { unit: it.quota.unit(), limit: it.quota.limit(), available }
        })
    }

    /// Moves the times of all grants so far forward by `delay`.
    pub(super) fn postpone(&mut self, delay: u64) {
        for quota in &mut self.quotas {
            quota.log.postpone(delay);
            quota.pace.iter_mut().for_each(|pace| pace.postpone(delay));
        }
    }

    /// Replaces the quotas. Amounts already taken still count.
    pub(super) fn change(own: &mut Option<Box<Self>>, quotas: &[Quota], spread: Spread, now: u64) {
        let new = Self::new(quotas, own.as_ref().map_or(spread, |own| own.spread));
        let Some(old) = std::mem::replace(own, new) else { return };
        for quota in own.iter_mut().flat_map(|own| own.quotas.iter_mut()) {
            let same = old.quotas.iter().filter(|old| old.quota.unit() == quota.quota.unit());
            let Some(old) = same.max_by_key(|old| old.log.window) else { continue };
            quota.log = old.log.clone().under(&quota.quota);
            quota.reported = old.reported;
            if let (Some(pace), Some(old)) = (&mut quota.pace, &old.pace) {
                pace.replace(&[old], now);
            }
        }
    }
}
