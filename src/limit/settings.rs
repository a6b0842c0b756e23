use std::{fmt, num::NonZeroU32, sync::Arc};

use super::permit_request::PermitRequest;
use crate::{call::RequestHead, policy::Priority};

/// The settings of a [`RateLimitLayer`](super::RateLimitLayer), shared by its services.
#[derive(Clone)]
pub(super) struct Settings<L> {
    pub(super) limiter: L,
    pub(super) bounds: PermitRequest,
    pub(super) cost: Option<CostOf>,
    pub(super) priority: Option<PriorityOf>,
    pub(super) feedback_from: Option<Trusts>,
}

impl<L: fmt::Debug> fmt::Debug for Settings<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("limiter", &self.limiter)
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

/// Computes the number of permits that a request takes.
type CostOf = Arc<dyn Fn(RequestHead<'_>) -> NonZeroU32 + Send + Sync>;

/// Returns the priority of a request.
type PriorityOf = Arc<dyn Fn(RequestHead<'_>) -> Priority + Send + Sync>;

/// Returns whether the rate-limit headers of the response to this request apply to the limiter.
type Trusts = Arc<dyn Fn(RequestHead<'_>) -> bool + Send + Sync>;
