//! An inner service with scripted responses and scripted faults. It also records violations of tower's contract by its
//! callers.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures_util::future::BoxFuture;
use http::{Request, Response};
use tower::Service;
use tower_outbound::{Body, BoxError, test_util};

use super::slow_body::SlowBody;
use crate::support::{Broken, Limited, ScriptedService, Seen, millis};

/// The message of planned panics.
pub(crate) const PANIC: &str = "the inner service panics";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PanicPoint {
    PollReady,
    Call,
    /// In `poll` of the response future.
    Future,
    /// In `poll_frame` of the request body, which the inner service reads.
    RequestBody,
    /// In `poll_frame` of the response body, which the caller or a layer reads.
    ResponseBody,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// `poll_ready` returns an error.
    ReadinessError,
    Panic(PanicPoint),
}

/// When a fault occurs. All clones of the service, their calls and their bodies share the plan.
#[derive(Debug)]
pub(crate) struct FaultPlan {
    fault: Fault,
    /// How many times the operation still succeeds before the first fault.
    successes: AtomicU32,
    /// How many times the fault still occurs after that.
    faults: AtomicU32,
    violations: Mutex<Vec<&'static str>>,
}

/// Decrements the counter. Returns `false` if it is zero.
fn decrement(count: &AtomicU32) -> bool {
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
}

impl FaultPlan {
    fn is_due(&self, fault: Fault) -> bool {
        self.fault == fault && !decrement(&self.successes) && decrement(&self.faults)
    }

    pub(crate) fn panic_if_due(&self, point: PanicPoint) {
        if self.is_due(Fault::Panic(point)) {
            panic!("{PANIC}");
        }
    }

    /// Returns whether all planned faults have occurred.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.faults.load(Ordering::Relaxed) == 0
    }

    fn record_violation(&self, violation: &'static str) {
        self.violations.lock().unwrap().push(violation);
    }
}

/// Responds as the request's header `x-responses` specifies. The header lists a status and a delay in milliseconds for
/// each attempt: `503:20 200:5`.
pub(crate) struct FaultyService {
    pub(crate) plan: Arc<FaultPlan>,
    pub(crate) limited: Limited,
    /// `poll_ready` returned an error or panicked, so this instance must not be used again. Its clones may be.
    failed: bool,
}

impl FaultyService {
    pub(crate) fn healthy() -> Self {
        Self::faulty_once_after(0, Fault::None)
    }

    /// The fault occurs once, after the operation succeeded `successes` times.
    pub(crate) fn faulty_once_after(successes: u32, fault: Fault) -> Self {
        Self::faulty(successes, 1, fault)
    }

    /// The fault occurs `faults` times, after the operation succeeded `successes` times.
    pub(crate) fn faulty(successes: u32, faults: u32, fault: Fault) -> Self {
        let (successes, faults, violations) = (successes.into(), faults.into(), Mutex::default());
        let limited = Limited::over(ScriptedService::from_fn(scripted_response)).with_pending_polls(1);
        Self { plan: Arc::new(FaultPlan { fault, successes, faults, violations }), limited, failed: false }
    }

    pub(crate) fn with_limited(mut self, configure: impl FnOnce(Limited) -> Limited) -> Self {
        self.limited = configure(self.limited);
        self
    }

    /// Returns how callers violated the contract.
    pub(crate) fn violations(&self) -> Vec<&'static str> {
        self.plan.violations.lock().unwrap().clone()
    }
}

/// Looks up the response for this attempt. Later attempts get the last response again.
fn scripted_response(seen: &Seen) -> test_util::ScriptedResponse {
    let number = seen.attempt.unwrap_or(1).max(1) as usize;
    let responses: Vec<_> = seen.header("x-responses").unwrap().split(' ').collect();
    let (status, delay) = responses.get(number - 1).or(responses.last()).unwrap().split_once(':').unwrap();
    let response = test_util::ScriptedResponse::status(status.parse().unwrap()).with_body("hello");
    response.with_delay(millis(delay.parse().unwrap()))
}

impl Clone for FaultyService {
    fn clone(&self) -> Self {
        Self { plan: Arc::clone(&self.plan), limited: self.limited.clone(), failed: false }
    }
}

impl<B> Service<Request<B>> for FaultyService
where
    B: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.failed {
            self.plan.record_violation("`poll_ready` after it failed");
        }
        // Stays set if the next line panics.
        self.failed = true;
        self.plan.panic_if_due(PanicPoint::PollReady);
        if self.plan.is_due(Fault::ReadinessError) {
            return Poll::Ready(Err(Broken.into()));
        }
        self.failed = false;
        Service::<Request<B>>::poll_ready(&mut self.limited, cx)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        if self.failed {
            self.plan.record_violation("`call` after `poll_ready` failed");
        }
        self.plan.panic_if_due(PanicPoint::Call);
        ResponseFuture { future: Some(self.limited.call(request)), plan: Arc::clone(&self.plan) }
    }
}

/// Stays pending if it is polled after completion. A layer's future must panic then, and cannot rely on this one.
pub(crate) struct ResponseFuture {
    future: Option<BoxFuture<'static, Result<Response<Body>, BoxError>>>,
    plan: Arc<FaultPlan>,
}

impl Future for ResponseFuture {
    type Output = Result<Response<Body>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else { return Poll::Pending };
        let result = ready!(future.as_mut().poll(cx));
        self.future = None;
        self.plan.panic_if_due(PanicPoint::Future);
        Poll::Ready(
            result.map(|response| response.map(|_| SlowBody::body(&self.plan, PanicPoint::ResponseBody))),
        )
    }
}
