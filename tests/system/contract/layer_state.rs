//! Access to the state that a layer shares between its calls.

use tower_outbound::{Quota, limit::Snapshot, retry::Budget};

use super::{faulty_service::FaultyService, layer_case::LayerCase};

#[derive(Default)]
pub(crate) struct LayerState {
    pub(crate) limiter: Option<Box<dyn Fn() -> Snapshot>>,
    pub(crate) quota: Option<Quota>,
    pub(crate) budget: Option<Budget>,
    /// A resource that must outlive the layer, such as a temporary file.
    #[allow(dead_code, reason = "only its `Drop` is used")]
    pub(crate) resource: Option<Box<dyn std::any::Any>>,
}

impl LayerState {
    pub(crate) fn of_limiter(quota: Quota, limiter: impl Fn() -> Snapshot + 'static) -> Self {
        Self { limiter: Some(Box::new(limiter)), quota: Some(quota), ..Self::default() }
    }

    /// Asserts that no call is queued or in flight, that no readiness is held, and that only `services` instances of the
    /// layer's service hold the inner service. At most `lost` retries may have returned no credit to the budget, because
    /// their call was dropped or panicked.
    #[track_caller]
    pub(crate) fn assert_idle(&self, case: &LayerCase, inner: &FaultyService, services: usize, lost: u32) {
        let label = &case.label;
        if let Some(snapshot) = self.limiter.as_ref().map(|limiter| limiter()) {
            assert_eq!((snapshot.queued, snapshot.in_flight), (0, 0), "{label}: {snapshot:?}");
        }
        if let Some(budget) = &self.budget {
            let (left, full) = (budget.left(), budget.capacity());
            assert!(
                (full - 14 * lost..=full).contains(&left),
                "{label}: {left} of {full} left in the budget"
            );
        }
        assert_eq!(inner.limited.permits_taken(), 0, "{label}: readiness is still held");
        assert_eq!(inner.limited.instances(), 1 + services, "{label}: a call still holds the inner service");
        assert_eq!(inner.violations(), [""; 0], "{label}");
    }
}
