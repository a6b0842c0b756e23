//! The quotas of tokens, points and other units. A request takes an estimated amount of each, which is settled when its
//! actual amount is known.

use std::cell::Cell;

use super::{
    amounts::differences,
    learned::KEPT,
    rules::{QuotaState, Rule},
    supply::Quotas,
};
use crate::policy::{Amounts, Quota, Remaining, Taken, Totals, Unit, adaptive::LearnedUnit, nanos};

/// The quotas of a limiter that count other units than requests.
#[derive(Debug)]
pub(crate) struct Units {
    pub(super) quotas: Quotas,
    /// The learned rates of an adaptive limiter.
    pub(super) learned: Vec<LearnedUnit>,
    /// Whether a store counts the amounts. The logs are then empty, and the reports are those of the store.
    pub(super) is_stored: bool,
    pub(crate) reports: Vec<Reported>,
    /// The time of the last change of the quotas. Amounts that were taken before are not returned, because these quotas
    /// may not contain them.
    changed_at: Option<u64>,
    /// The unit that determined the last forecast, and the forecast.
    delaying: Cell<Option<(u64, Unit)>>,
}

/// The amount that the server has reported as remaining of one of its quotas, until the reset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reported {
    pub(crate) policy: u64,
    pub(crate) unit: Unit,
    pub(crate) left: u64,
    /// The amount that was taken since, and is not contained in the report.
    pub(crate) used: u64,
    /// The smallest amount that waits until `until`.
    pub(crate) needed: u64,
    pub(crate) until: u64,
    /// When the request was sent whose response reported it.
    pub(crate) sent_at: u64,
}

/// The maximum number of reported quotas that are stored.
const MOST_REPORTS: usize = 8;

/// The state of a quota that counts a unit other than requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitState {
    /// The unit that the quota counts.
    pub unit: Unit,
    /// The limit of the quota.
    pub limit: u32,
    /// The amount that the window and the burst have room for now. Zero if the amounts in the window reach or exceed
    /// the limit.
    pub available: u32,
}

/// Returns the quotas that count other units than requests.
fn others(quotas: &[Quota]) -> impl Iterator<Item = &Quota> {
    quotas.iter().filter(|quota| !quota.counts_requests())
}

impl Reported {
    fn left(&self) -> u64 {
        self.left.saturating_sub(self.used)
    }

    /// Updates the report of the same quota. Until the reset, a report can only lower the amount, because one of more
    /// may be an older one. Returns whether it delays more requests.
    fn narrow(&mut self, new: Self) -> bool {
        let (before, until) = (self.left(), self.until);
        if new.left() <= before {
            *self = Self { until: until.max(new.until), ..new };
        }
        self.left() < before || self.until > until
    }
}

impl Units {
    /// Returns `None` if no quota counts a unit other than requests.
    pub(super) fn new(quotas: &[Quota], rule: Rule) -> Option<Box<Self>> {
        let quotas = Quotas::of(others(quotas), rule);
        (!quotas.is_empty()).then(|| Box::new(Self { quotas, ..*Self::empty() }))
    }

    /// Creates the state of an adaptive limiter without quotas of other units.
    pub(super) fn empty() -> Box<Self> {
        let (quotas, delaying) = (Quotas::new(&[], Rule::Learned), Cell::new(None));
        let (learned, reports) = (Vec::new(), Vec::new());
        Box::new(Self { quotas, learned, is_stored: false, reports, changed_at: None, delaying })
    }

    /// Discards what the server reported.
    pub(super) fn resume(&mut self, now: u64) {
        self.reports.clear();
        self.learned.iter_mut().for_each(|unit| unit.learner.resume(now));
    }

    /// Creates the quotas of a limiter whose store counts the amounts.
    pub(super) fn stored(quotas: &[Quota]) -> Option<Box<Self>> {
        Self::new(quotas, Rule::SlidingWindow).map(|units| Box::new(Self { is_stored: true, ..*units }))
    }

    /// Returns when the amounts of a request are available behind those of `ahead`.
    pub(crate) fn due(&self, start: u64, ahead: &Totals, amounts: &Amounts) -> u64 {
        let quotas = self.quotas.states.iter();
        let quotas =
            quotas.map(|it| (it.due_behind(start, ahead.get(it.unit()), it.own(amounts)), it.unit()));
        let reports = self.reports.iter().filter(|it| start < it.until).map(|it| {
            let total = ahead.get(it.unit).saturating_add(amounts.get(it.unit).into());
            // A store reports when the amount of its query fits. A smaller amount may fit earlier.
            (if it.left() < total && it.needed <= total { it.until } else { start }, it.unit)
        });
        let learned = self.learned.iter();
        let learned = learned.map(|it| (it.due(start, ahead.get(it.unit()), amounts), it.unit()));
        let last =
            quotas.chain(reports).chain(learned).filter(|(due, _)| *due > start).max_by_key(|(due, _)| *due);
        self.delaying.set(last);
        last.map_or(start, |(due, _)| due)
    }

    /// Returns the unit that determined the last forecast, if that was `due`.
    pub(super) fn delaying(&self, due: u64) -> Option<Unit> {
        self.delaying.get().filter(|(last, _)| *last == due).map(|(_, unit)| unit)
    }

    /// Returns the lowest limit of each unit. The limit is zero for a unit without a quota, so its amounts are ignored.
    pub(super) fn limits(&self) -> Amounts {
        let quotas = self.quotas.states.iter().map(|it| (it.unit(), it.quota.limit()));
        let learned = self.learned.iter().map(|it| (it.unit(), it.most));
        quotas.chain(learned).fold(Amounts::NONE, |limits, (unit, own)| {
            limits.with(unit, if let known @ 1.. = limits.get(unit) { known.min(own) } else { own })
        })
    }

    /// Returns whether no amount exceeds the limit of a quota.
    pub(super) fn fit(&self, amounts: &Amounts) -> bool {
        self.quotas.states.iter().all(|it| amounts.get(it.unit()) <= it.quota.limit())
    }

    /// Takes the amounts of a request that leaves now. The buckets count it as if it left at `at`.
    pub(crate) fn take(&mut self, at: u64, amounts: &Amounts, now: u64) {
        if self.is_stored {
            return;
        }
        for quota in &mut self.quotas.states {
            let own = quota.own(amounts);
            let logged = if quota.quota.is_bucket() { own } else { amounts.get(quota.unit()).into() };
            quota.take(at, own, (logged, now));
        }
        for report in &mut self.reports {
            report.used = report.used.saturating_add(amounts.get(report.unit).into());
        }
        self.learned.iter_mut().for_each(|unit| unit.take(amounts, now));
    }

    /// Replaces the amounts that a request took at `taken_at`. Returns whether it takes more of a unit than before.
    pub(crate) fn settle(&mut self, taken_at: u64, taken: &Taken, actual: &Amounts, now: u64) -> bool {
        let mut is_more = false;
        if self.is_stored {
            return is_more;
        }
        let returned =
            Some(taken_at).filter(|taken_at| self.changed_at.is_none_or(|changed_at| changed_at < *taken_at));
        for quota in &mut self.quotas.states {
            is_more |= quota.settle(returned, taken, actual, now);
        }
        for report in &mut self.reports {
            let [more, less] = differences([&taken.charged, actual].map(|it| it.get(report.unit).into()));
            report.used = report.used.saturating_add(more);
            if taken_at > report.sent_at {
                report.used = report.used.saturating_sub(less);
            }
        }
        is_more
    }

    /// Applies the remaining amounts of a response whose request was sent at `sent_at`. Subtracts the amounts granted
    /// later, because the server may not have counted them. Returns whether they delay more requests.
    pub(super) fn report(&mut self, remaining: &[Remaining], sent_at: u64, longest: u64, now: u64) -> bool {
        let mut is_narrower = false;
        if self.is_stored {
            return is_narrower;
        }
        self.reports.retain(|report| now < report.until);
        for reported in remaining {
            let unit = reported.unit();
            let logs =
                self.quotas.states.iter().filter(|quota| quota.unit() == unit).flat_map(|quota| &quota.log);
            let Some(later) = logs.map(|log| log.since(sent_at)).max() else { continue };
            let until = now.saturating_add(nanos(reported.reset_after()).min(longest));
            let (policy, left) = (reported.policy(), reported.left());
            let new = Reported { policy, unit, left, used: later, needed: 0, until, sent_at };
            if let Some(known) = self.reports.iter_mut().find(|known| known.policy == new.policy) {
                is_narrower |= known.narrow(new);
            } else if self.reports.len() < MOST_REPORTS {
                self.reports.push(new);
                is_narrower = true;
            }
        }
        is_narrower
    }

    pub(super) fn is_whole(&self, now: u64) -> bool {
        let is_lost = |unit: &LearnedUnit| unit.is_whole(KEPT, now);
        self.quotas.is_whole(now)
            && self.learned.iter().all(is_lost)
            && self.reports.iter().all(|report| report.until <= now)
    }

    pub(super) fn states(&self, now: u64) -> impl Iterator<Item = UnitState> {
        self.quotas.states.iter().map(move |it| {
            let unit = it.unit();
            let applies = |report: &&Reported| report.unit == unit && (self.is_stored || now < report.until);
            let reported = self.reports.iter().filter(applies);
            let left = reported.map(Reported::left).min().unwrap_or(u64::MAX);
            let available = u32::try_from(it.available(now).min(left)).unwrap_or(u32::MAX);
            UnitState { unit, limit: it.quota.limit(), available }
        })
    }

    /// Replaces the quotas. Amounts already taken still count.
    pub(crate) fn change(own: &mut Option<Box<Self>>, quotas: &[Quota], rule: Rule, now: u64) {
        if others(quotas).eq(own.iter().flat_map(|own| &own.quotas.states).map(|quota| &quota.quota)) {
            return;
        }
        let mut old = std::mem::replace(own, Self::new(quotas, rule));
        let learned = old.as_mut().map_or_else(Vec::new, |old| std::mem::take(&mut old.learned));
        if own.is_none() && !learned.is_empty() {
            *own = Some(Self::empty());
        }
        let Some(own) = own else { return };
        (own.learned, own.changed_at) = (learned, Some(now));
        let ceilings: Vec<_> = own.learned.iter().map(|it| own.ceiling(it.unit())).collect();
        own.learned.iter_mut().zip(ceilings).for_each(|(it, ceiling)| it.set_ceiling(ceiling, now));
        let Some(old) = old else { return };
        let is_limited =
            |report: &Reported| own.quotas.states.iter().any(|quota| quota.unit() == report.unit);
        own.reports = old.reports.into_iter().filter(is_limited).collect();
        for quota in &mut own.quotas.states {
            // The log of a bucket contains at most the capacity of each amount, so a window first replaces a window.
            // Otherwise the quota with the same window, or that with the longest one.
            let same = old.quotas.states.iter().filter(|old| old.unit() == quota.unit());
            let length = |old: &QuotaState| old.log.as_ref().map(|log| log.window);
            let (is_bucket, window) = (quota.quota.is_bucket(), quota.quota.window());
            let by_window = |old: &&QuotaState| {
                (old.quota.is_bucket() == is_bucket, old.quota.window() == window, length(old))
            };
            let Some(old) = same.max_by_key(by_window) else { continue };
            quota.log = old.log.clone().map(|log| log.under(&quota.quota));
            let Some(pace) = &mut quota.pace else { continue };
            let log = quota.log.as_ref().filter(|_| is_bucket && !old.quota.is_bucket());
            pace.replace(old.pace.as_ref().as_slice(), log, now);
            quota.limit_wait(now);
        }
    }

    /// Returns the amount per second of the slowest quota of a unit.
    pub(super) fn ceiling(&self, unit: Unit) -> f64 {
        let own = self.quotas.states.iter().filter(|it| it.quota.unit() == unit);
        own.map(|it| it.quota.sustained()).fold(f64::INFINITY, f64::min)
    }
}
