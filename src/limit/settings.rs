use std::{fmt, num::NonZeroU32, sync::Arc};

use http::{HeaderMap, StatusCode};

use super::{
    permit_request::{PermitCost, PermitRequest},
    settlement::Metered,
};
use crate::{
    call::{CallContext, Deadline, RequestHead, extension_beside},
    policy::{Amounts, Priority, dialect::Dialect},
    telemetry::{LastWarning, OrderWarning},
};

/// The settings of a [`RateLimitLayer`](super::RateLimitLayer), shared by its services.
#[derive(Clone)]
pub(super) struct Settings<L> {
    pub(super) limiter: L,
    pub(super) options: Options,
}

/// The settings other than the limiter.
#[derive(Clone, Default)]
pub(super) struct Options {
    pub(super) bounds: PermitRequest,
    pub(super) cost: Option<CostOf>,
    pub(super) estimate: Option<EstimateOf>,
    pub(super) actual: Option<ActualOf>,
    pub(super) meter: Option<MeterOf>,
    pub(super) priority: Option<PriorityOf>,
    pub(super) feedback_from: Option<Trusts>,
    pub(super) dialect: Dialect,
    /// Whether a request is in flight until the head of its response, instead of the end of its body.
    pub(super) in_flight_until_head: bool,
    /// The WARN event for a layer that is outside a retry layer.
    pub(super) order_warning: Arc<OrderWarning>,
    pub(super) refusal_warning: Arc<LastWarning>,
}

impl Options {
    /// Returns the `PermitRequest` of a request: its cost, priority, deadline, maximum wait and maximum queue.
    pub(super) fn permit_request(&self, head: RequestHead<'_>, call: Option<&CallContext>) -> PermitRequest {
        let cost = match &self.cost {
            Some(cost) => cost(head),
            None => extension_beside(call, head.extensions).map_or(NonZeroU32::MIN, |PermitCost(cost)| *cost),
        };
        let priority = match &self.priority {
            Some(priority) => priority(head),
            None => extension_beside(call, head.extensions).copied().unwrap_or_default(),
        };
        let mut request = self.bounds.with_cost(cost).with_priority(priority);
        if let Some(estimate) = &self.estimate {
            request = request.with_amounts(estimate(head));
        } else if let Some(amounts) = extension_beside(call, head.extensions) {
            request = request.with_amounts(*amounts);
        }
        match Deadline::of(call, head.extensions) {
            Some(deadline) => request.with_deadline(deadline),
            None => request,
        }
    }
}

impl<L: fmt::Debug> fmt::Debug for Settings<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("limiter", &self.limiter)
            .field("bounds", &self.options.bounds)
            .finish_non_exhaustive()
    }
}

/// Computes the number of permits that a request takes.
type CostOf = Arc<dyn Fn(RequestHead<'_>) -> NonZeroU32 + Send + Sync>;

/// Estimates the amounts that a request takes of other units.
type EstimateOf = Arc<dyn Fn(RequestHead<'_>) -> Amounts + Send + Sync>;

/// Reads the actual amounts of a request from the head of its response.
type ActualOf = Arc<dyn Fn(StatusCode, &HeaderMap) -> Option<Amounts> + Send + Sync>;

/// Creates the meter of a response body.
type MeterOf = Arc<dyn Fn(StatusCode, &HeaderMap) -> Meter + Send + Sync>;

/// Reads the actual amounts of a request from the data of its response body. It receives each part of the data once.
pub(super) type Meter = Box<dyn FnMut(&[u8]) -> Option<Metered> + Send + Sync>;

/// Returns the priority of a request.
type PriorityOf = Arc<dyn Fn(RequestHead<'_>) -> Priority + Send + Sync>;

/// Returns whether the rate-limit headers of the response to this request apply to the limiter.
type Trusts = Arc<dyn Fn(RequestHead<'_>) -> bool + Send + Sync>;
