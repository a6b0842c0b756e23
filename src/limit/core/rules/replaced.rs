//! Changes between windows and buckets.

use std::mem;

use super::{FARTHEST, Gcra, GrantLog};

/// The state that only a log of amounts, or of a window that replaced buckets, has.
#[derive(Debug, Clone)]
pub(super) enum Extra {
    /// The log of amounts. All amounts of a part with this length share an entry.
    Amounts { part: u64 },
    /// The buckets that the window replaced at this time, which have no log of their grants.
    Replaced { at: u64, paces: Vec<Gcra> },
}

impl Extra {
    /// Moves the times of the grants forward by `delay`.
    pub(super) fn postpone(&mut self, delay: u64) {
        if let Self::Replaced { at, paces } = self {
            *at = at.saturating_add(delay);
            paces.iter_mut().for_each(|pace| pace.postpone(delay));
        }
    }
}

impl GrantLog {
    /// Returns the length of the parts whose amounts share an entry. Zero for requests.
    #[inline]
    pub(super) fn part(&self) -> u64 {
        if let Some(Extra::Amounts { part }) = self.extra.as_deref() { *part } else { 0 }
    }

    /// Replaces buckets, which have no log of their grants. Any limit counts as spent now, also after another change.
    pub(in crate::limit::core) fn replace(&mut self, paces: &[&Gcra], now: u64) {
        self.add(now, u32::MAX.into());
        let paces = paces.iter().copied().cloned().collect();
        self.extra = Some(Box::new(Extra::Replaced { at: now, paces }));
    }

    /// Returns the arrival time of a bucket from which only these amounts were taken, each at the time of its entry.
    pub(in crate::limit::core) fn arrival(&self, interval: u64) -> u64 {
        self.arrival_from(0, interval, None)
    }

    /// Returns the arrival time of a bucket that replaces the window of this log. The permits that count as spent since
    /// the window replaced other buckets are those that were spent from these buckets.
    pub(super) fn arrival_after(&self, bucket: &Gcra) -> u64 {
        let Some(Extra::Replaced { at, paces }) = self.extra.as_deref() else {
            return self.arrival(bucket.interval);
        };
        let missing = paces.iter().map(|pace| bucket.missing_after(pace, *at)).max();
        let from = at.saturating_add(missing.unwrap_or(0).min(FARTHEST));
        self.arrival_from(from, bucket.interval, Some(*at))
    }

    /// Returns the arrival time of a bucket whose arrival time was `from` before these amounts, except for those of the
    /// entry at `ignored`.
    fn arrival_from(&self, from: u64, interval: u64, ignored: Option<u64>) -> u64 {
        let mut before = 0;
        self.grants.iter().fold(from, |arrival, entry| {
            let amount = self.up_to(entry) - mem::replace(&mut before, self.up_to(entry));
            match ignored == Some(entry.at) {
                true => arrival,
                false => arrival.max(entry.at).saturating_add(interval.saturating_mul(amount)),
            }
        })
    }
}
