//! How much a request takes of each unit.

use std::fmt;

use super::Unit;

/// The number of units that have amounts.
const UNITS: usize = 5;

/// How much a request takes of each unit other than requests, such as tokens and points. Insert this value into the
/// request's extensions, or compute it with
/// [`with_estimate`](crate::limit::RateLimitLayer::with_estimate). Default: zero for each unit.
///
/// ```
/// use tower_outbound::limit::{Amounts, Unit};
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Amounts::of(Unit::InputTokens, 800).with(Unit::OutputTokens, 200));
/// ```
///
/// - [`Unit::Requests`] and [`Unit::Concurrency`] have no amounts, so [`with`](Self::with) ignores them. See
///   [`PermitCost`](crate::limit::PermitCost) and
///   [`with_max_in_flight`](crate::limit::LocalLimiter::with_max_in_flight).
/// - A limiter ignores the units for which it has no quota and learns no rate.
/// - An amount above the limit of the quota counts as the limit. Otherwise the request could never be sent. In a
///   [bucket](crate::Quota::bucket), an actual amount above the capacity counts in full.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts([u32; UNITS]);

impl Amounts {
    /// No amount of any unit.
    pub const NONE: Self = Self([0; UNITS]);

    /// Creates an amount of one unit.
    pub fn of(unit: Unit, amount: u32) -> Self {
        Self::default().with(unit, amount)
    }

    /// Sets the amount of a unit.
    pub fn with(mut self, unit: Unit, amount: u32) -> Self {
        if let Some(own) = index(unit).and_then(|index| self.0.get_mut(index)) {
            *own = amount;
        }
        self
    }

    /// Returns the amount of a unit.
    pub fn get(&self, unit: Unit) -> u32 {
        index(unit).and_then(|index| self.0.get(index)).copied().unwrap_or(0)
    }

    /// Combines both amounts of each unit.
    pub(crate) fn zip(mut self, other: &Self, combine: impl Fn(u32, u32) -> u32) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own = combine(*own, other));
        self
    }

    /// Returns the amounts of the units that have a limit in `limits`.
    pub(crate) fn limited_by(self, limits: &Self) -> Self {
        self.zip(limits, |own, limit| if limit == 0 { 0 } else { own })
    }

    /// Returns whether all amounts are zero.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the index of a unit. `None` if the unit has no amounts.
fn index(unit: Unit) -> Option<usize> {
    match unit {
        Unit::Tokens => Some(0),
        Unit::InputTokens => Some(1),
        Unit::OutputTokens => Some(2),
        Unit::Points => Some(3),
        Unit::Bytes => Some(4),
        Unit::Requests | Unit::Concurrency => None,
    }
}

impl fmt::Debug for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = Unit::NAMES.iter().filter(|(unit, _)| self.get(*unit) > 0);
        f.debug_map().entries(units.map(|(unit, name)| (name, self.get(*unit)))).finish()
    }
}

/// What one request takes of each unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Taken {
    /// What its permit took: the estimate.
    pub granted: Amounts,
    /// What the request takes so far. Settled amounts replace the granted ones.
    pub charged: Amounts,
    /// Whether the server's limits accepted the request. `None` until its permit ends.
    pub is_accepted: Option<bool>,
}

impl Taken {
    /// The amounts of a permit.
    pub const fn of(granted: Amounts) -> Self {
        Self { granted, charged: granted, is_accepted: None }
    }

    /// The amounts of a permit whose request was not sent.
    pub const fn unsent(granted: Amounts) -> Self {
        Self { granted, charged: Amounts::NONE, is_accepted: Some(false) }
    }
}

/// The sums of several amounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals([u64; UNITS]);

impl Totals {
    /// No amount of any unit.
    pub(crate) const NONE: Self = Self([0; UNITS]);

    pub(crate) fn get(&self, unit: Unit) -> u64 {
        index(unit).and_then(|index| self.0.get(index)).copied().unwrap_or(0)
    }

    /// Adds amounts.
    pub(crate) fn add(&mut self, amounts: &Amounts) {
        self.0.iter_mut().zip(amounts.0).for_each(|(sum, own)| *sum += u64::from(own));
    }

    /// Subtracts amounts that were added before.
    pub(crate) fn remove(&mut self, amounts: &Amounts) {
        self.0.iter_mut().zip(amounts.0).for_each(|(sum, own)| *sum -= u64::from(own));
    }

    /// Returns the sums of both.
    pub(crate) fn plus(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(sum, own)| *sum += own);
        self
    }
}
