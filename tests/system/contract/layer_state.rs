//! Gives the tests access to the state that all calls through a layer share.

use tower_outbound::{Quota, limit::Snapshot, retry::Budget};

use super::{faulty_service::FaultyService, layer_case::LayerCase};

#[derive(Default)]
pub(crate) struct LayerState {
    pub(crate) limiter: Option<Box<dyn Fn() -> Snapshot>>,
    pub(crate) quota: Option<Quota>,
    pub(crate) budget: Option<Budget>,
    /// A resource that must outlive the layer, such as a temporary file.
    #[allow(dead_code, reason = "the tests use only the `Drop` of the field")]
    pub(crate) resource: Option<Box<dyn std::any::Any>>,
}

impl LayerState {
    pub(crate) fn of_limiter(quota: Quota, limiter: impl Fn() -> Snapshot + 'static) -> Self {
        Self { limiter: Some(Box::new(limiter)), quota: Some(quota), ..Self::default() }
    }

    /// Asserts that no call is queued or in flight, and that no permit of the inner service is taken. Exactly
    /// `services` instances of the layer's service may hold a clone of the inner service. The retry budget may lack the
    /// credit of `lost` retries, because a dropped or panicked call does not return its credit.
    #[track_caller]
    pub(crate) fn assert_idle(&self, case: &LayerCase, inner: &FaultyService, services: usize, lost: u32) {
        let label = &case.label;
        if let Some(snapshot) = self.limiter.as_ref().map(|limiter| limiter()) {
            assert_eq!((snapshot.queued, snapshot.awaiting_response), (0, 0), "{label}: {snapshot:?}");
        }
        if let Some(budget) = &self.budget {
            let (left, full) = (budget.left(), budget.capacity());
            assert!(
                (full - 14 * lost..=full).contains(&left),
                "{label}: the retry budget has {left} of {full} units left"
            );
        }
        assert_eq!(
            inner.limited.permits_taken(),
            0,
            "{label}: a caller still holds a permit of the inner service"
        );
        assert_eq!(
            inner.limited.instances(),
            1 + services,
            "{label}: a call still holds a clone of the inner service"
        );
        assert_eq!(inner.violations(), [""; 0], "{label}");
    }
}
