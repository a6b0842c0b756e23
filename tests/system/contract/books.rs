//! What a layer keeps count of, which has to be even when all is over.

use tower_outbound::{Quota, limit::Snapshot, retry::Budget};

use super::{moody::Moody, row::Row};

#[derive(Default)]
pub(crate) struct Books {
    pub(crate) limiter: Option<Box<dyn Fn() -> Snapshot>>,
    pub(crate) quota: Option<Quota>,
    pub(crate) budget: Option<Budget>,
    /// What the layer needs for as long as it is used.
    #[allow(dead_code, reason = "it is kept for its end alone")]
    pub(crate) keeps: Option<Box<dyn std::any::Any>>,
}

impl Books {
    pub(crate) fn limiter(quota: Quota, limiter: impl Fn() -> Snapshot + 'static) -> Self {
        Self { limiter: Some(Box::new(limiter)), quota: Some(quota), ..Self::default() }
    }

    /// Asserts that nobody waits, nothing is in flight, and only `services` of the layer hold the service below. At most
    /// `lost` retries returned no credit, because their call was dropped.
    #[track_caller]
    pub(crate) fn are_even(&self, row: &Row, moody: &Moody, services: usize, lost: u32) {
        let at = &row.label;
        if let Some(snapshot) = self.limiter.as_ref().map(|limiter| limiter()) {
            assert_eq!((snapshot.queued, snapshot.in_flight), (0, 0), "{at}: {snapshot:?}");
        }
        if let Some(budget) = &self.budget {
            let (left, full) = (budget.left(), budget.capacity());
            assert!((full - 14 * lost..=full).contains(&left), "{at}: {left} of {full} left in the budget");
        }
        assert_eq!(moody.probe.permits_taken(), 0, "{at}: readiness is held");
        assert_eq!(moody.probe.instances(), 1 + services, "{at}: calls are left");
        assert_eq!(moody.faults(), [""; 0], "{at}");
    }
}
