//! An inner service with scripted responses and faults. The service also records when a caller violates tower's
//! contract.

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

/// The message of every panic that a fault plan causes.
pub(crate) const PANIC: &str = "the inner service panics";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PanicPoint {
    PollReady,
    Call,
    /// The service panics in `poll` of the response future.
    Future,
    /// The request body panics in `poll_frame`, which the inner service calls.
    RequestBody,
    /// The response body panics in `poll_frame`, which the caller or a layer calls.
    ResponseBody,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// `poll_ready` returns an error.
    ReadinessError,
    Panic(PanicPoint),
}

/// Determines when a fault occurs. A service, its clones, its calls and its bodies share one plan.
#[derive(Debug)]
pub(crate) struct FaultPlan {
    fault: Fault,
    /// The number of operations that still succeed before the first fault.
    successes: AtomicU32,
    /// The number of faults that have not occurred yet.
    faults: AtomicU32,
    violations: Mutex<Vec<&'static str>>,
}

/// Decrements the counter. Returns `false` if the counter is already zero.
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

/// A service that responds as the request's `x-responses` header specifies. The header lists a status and a delay in
/// milliseconds for each attempt, such as `503:20 200:5`.
pub(crate) struct FaultyService {
    pub(crate) plan: Arc<FaultPlan>,
    pub(crate) limited: Limited,
    /// `true` if `poll_ready` of this instance returned an error or panicked. The caller must not use a failed instance
    /// again, but may use a clone.
    failed: bool,
}

impl FaultyService {
    pub(crate) fn healthy() -> Self {
        Self::faulty_once_after(0, Fault::None)
    }

    /// Creates a service in which the fault occurs once, after `successes` successful operations.
    pub(crate) fn faulty_once_after(successes: u32, fault: Fault) -> Self {
        Self::faulty(successes, 1, fault)
    }

    /// Creates a service in which the fault occurs `faults` times, after `successes` successful operations.
    pub(crate) fn faulty(successes: u32, faults: u32, fault: Fault) -> Self {
        let (successes, faults, violations) = (successes.into(), faults.into(), Mutex::default());
        let limited = Limited::over(ScriptedService::from_fn(scripted_response)).with_pending_polls(1);
        Self { plan: Arc::new(FaultPlan { fault, successes, faults, violations }), limited, failed: false }
    }

    pub(crate) fn with_limited(mut self, configure: impl FnOnce(Limited) -> Limited) -> Self {
        self.limited = configure(self.limited);
        self
    }

    /// Returns the callers' violations of tower's contract.
    pub(crate) fn violations(&self) -> Vec<&'static str> {
        self.plan.violations.lock().unwrap().clone()
    }
}

/// Returns the scripted response for the request's attempt. Attempts beyond the end of the script repeat the last
/// response.
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
            self.plan.record_violation("the caller polled an instance whose `poll_ready` had failed");
        }
        // `failed` stays `true` if `panic_if_due` panics.
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
            self.plan.record_violation("the caller called an instance whose `poll_ready` had failed");
        }
        self.plan.panic_if_due(PanicPoint::Call);
        ResponseFuture { future: Some(self.limited.call(request)), plan: Arc::clone(&self.plan) }
    }
}

/// A response future that stays pending if it is polled after completion. A layer's future must panic in this case,
/// without help from the inner future.
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
