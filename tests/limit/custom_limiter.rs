//! Tests of custom limiters: which functions of a limiter `RateLimitLayer` calls, and in which order.

use std::{
    future::ready,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Service, ServiceExt};
use tower_layer::Layer;
use tower_outbound::{
    error::{Reason, Refusal},
    limit::{
        Acquire, AnyLimiter, Learned, Limiter, Permit, PermitIssuer, PermitRequest, RateLimitLayer,
        ResponseInfo, SelectLimiter,
    },
};

use crate::{ReadyAfter, millis, ok_service};

type Log = Arc<Mutex<Vec<&'static str>>>;

/// A limiter whose permits have no issuer. It grants every request, and records each call of `acquire_with`.
#[derive(Debug, Clone, Default)]
struct LimiterWithoutIssuer(Log);

impl Limiter for LimiterWithoutIssuer {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        self.0.lock().unwrap().push("acquire");
        Acquire::ready(Ok(Permit::new(request.cost())))
    }
}

/// A limiter that grants every request, and records each call of `acquire_with` and the outcome of each permit.
#[derive(Debug, Clone, Default)]
struct RecordingLimiter(Log);

impl Limiter for RecordingLimiter {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        self.0.lock().unwrap().push("acquire");
        Acquire::ready(Ok(Permit::new(request.cost()).with_issuer(Arc::new(self.clone()))))
    }
}

impl PermitIssuer for RecordingLimiter {
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        self.0.lock().unwrap().push("is_expired");
        permit.granted_at().elapsed() > millis(10)
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) -> Option<Learned> {
        assert!(permit.sent_at().is_some_and(|sent| sent <= response.received_at()));
        let pause = response.requested_pause();
        assert_eq!(pause, (response.status() == 429).then_some(Duration::from_secs(7)));
        assert_eq!(response.headers().len(), usize::from(response.status() != 200));
        self.0.lock().unwrap().push("completed");
        None
    }

    fn dropped(&self, permit: &Permit<'_>) {
        self.0.lock().unwrap().push(if permit.sent_at().is_some() { "unconfirmed" } else { "wasted" });
    }
}

/// Calls a service that becomes ready after `delay` milliseconds. The call fails if `status` is 0.
async fn call<L: SelectLimiter + Clone + 'static>(limiter: L, status: u16, delay: u64) {
    let respond = move || async move {
        match status {
            0 => Err("connection reset"),
            200 => Ok(Response::new(())),
            _ => Ok(Response::builder().status(status).header("retry-after", "7").body(()).unwrap()),
        }
    };
    let inner = ReadyAfter::new(millis(delay))
        .map_err(|never: std::convert::Infallible| -> &str { match never {} })
        .and_then(move |_| respond());
    let _ = RateLimitLayer::new(limiter).layer(inner).oneshot(Request::new(())).await;
}

#[tokio::test(start_paused = true)]
async fn rate_limit_layer_notifies_custom_limiter_of_every_permit_outcome() {
    for (status, delay, log) in [
        (200, 0, &["acquire", "completed"][..]),
        (429, 0, &["acquire", "completed"]),
        (404, 0, &["acquire", "completed"]),
        (0, 0, &["acquire", "unconfirmed"]),
        (200, 10, &["acquire", "is_expired", "completed"]),
        (200, 11, &["acquire", "is_expired", "wasted", "acquire", "completed"]),
    ] {
        let (direct, any) = (RecordingLimiter::default(), RecordingLimiter::default());
        call(direct.clone(), status, delay).await;
        call(AnyLimiter::new(any.clone()), status, delay).await;
        for limiter in [&direct, &any] {
            assert_eq!(*limiter.0.lock().unwrap(), log, "status {status}, service ready after {delay} ms");
        }
    }
    // A permit without an issuer expires as soon as any time has passed since the grant.
    for (status, delay, log) in
        [(429, 0, &["acquire"][..]), (0, 0, &["acquire"]), (200, 1, &["acquire", "acquire"])]
    {
        let limiter = LimiterWithoutIssuer::default();
        call(limiter.clone(), status, delay).await;
        assert_eq!(*limiter.0.lock().unwrap(), log, "status {status}, service ready after {delay} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn released_permit_is_reported_as_unsent_even_after_mark_sent() {
    let limiter = RecordingLimiter::default();
    let mut permit = limiter.acquire_with(&PermitRequest::new()).await.unwrap();
    permit.mark_sent(Instant::now());
    assert!(format!("{permit:?}").starts_with("Permit { cost: 1, granted_at: Instant"), "{permit:?}");
    permit.release();
    assert_eq!(*limiter.0.lock().unwrap(), ["acquire", "wasted"]);
}

/// The decision that `DecidingLimiter::try_acquire_with` returns.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Decision {
    Grant,
    Refuse,
    Undecided,
}

/// A limiter whose `try_acquire_with` returns `decision`. The limiter records each call and the outcome of each permit.
#[derive(Debug, Clone)]
struct DecidingLimiter {
    decision: Decision,
    issuer: Arc<Issuer>,
}

/// The permit issuer of `DecidingLimiter`. It keeps the default `is_expired`, so a permit expires as soon as any time
/// has passed since the grant.
#[derive(Debug, Default)]
struct Issuer(Mutex<Vec<&'static str>>);

impl DecidingLimiter {
    fn new(decision: Decision) -> Self {
        Self { decision, issuer: Arc::default() }
    }

    fn grant(&self, request: &PermitRequest) -> Permit<'static> {
        Permit::new(request.cost()).with_issuer(Arc::clone(&self.issuer) as Arc<dyn PermitIssuer>)
    }

    fn record(&self, call: &'static str) {
        self.issuer.0.lock().unwrap().push(call);
    }

    fn take_record(&self) -> Vec<&'static str> {
        self.issuer.0.lock().unwrap().drain(..).collect()
    }
}

impl Limiter for DecidingLimiter {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        self.record("acquire");
        Acquire::new(ready(Ok(self.grant(request))))
    }

    fn try_acquire_with(&self, request: &PermitRequest) -> Option<Result<Permit<'static>, Refusal>> {
        self.record("try_acquire");
        match self.decision {
            Decision::Grant => Some(Ok(self.grant(request))),
            Decision::Refuse => Some(Err(Refusal::new(Reason::QueueFull, Duration::from_secs(1)))),
            Decision::Undecided => None,
        }
    }
}

impl PermitIssuer for Issuer {
    fn completed(&self, _: &Permit<'_>, _: &ResponseInfo<'_>) -> Option<Learned> {
        self.0.lock().unwrap().push("completed");
        None
    }

    fn dropped(&self, permit: &Permit<'_>) {
        self.0.lock().unwrap().push(if permit.sent_at().is_some() { "unconfirmed" } else { "wasted" });
    }
}

/// Makes a call that completes at its first poll. Returns whether the call succeeded.
fn poll_call(limiter: impl SelectLimiter + Clone) -> bool {
    let mut future = task::spawn(RateLimitLayer::new(limiter).layer(ok_service()).call(Request::new(())));
    let outcome = assert_ready!(future.poll());
    if let Err(error) = &outcome {
        assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
        assert!(error.is_rate_limited());
    }
    outcome.is_ok()
}

#[test]
fn rate_limit_layer_calls_acquire_only_if_try_acquire_returns_none() {
    for (decision, calls) in [
        (Decision::Grant, &["try_acquire", "completed"][..]),
        (Decision::Refuse, &["try_acquire"]),
        (Decision::Undecided, &["try_acquire", "acquire", "completed"]),
    ] {
        let limiter = DecidingLimiter::new(decision);
        for succeeded in [poll_call(limiter.clone()), poll_call(AnyLimiter::new(limiter.clone()))] {
            assert_eq!(succeeded, decision != Decision::Refuse);
        }
        assert_eq!(limiter.take_record(), calls.repeat(2), "{decision:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rate_limit_layer_calls_try_acquire_to_replace_an_expired_permit() {
    let limiter = DecidingLimiter::new(Decision::Grant);
    let delayed = ReadyAfter::new(Duration::from_secs(1));
    let mut future = task::spawn(RateLimitLayer::new(limiter.clone()).layer(delayed).call(Request::new(())));
    assert_pending!(future.poll());
    advance(Duration::from_secs(1)).await;
    assert!(assert_ready!(future.poll()).is_ok());
    assert_eq!(limiter.take_record(), ["try_acquire", "wasted", "try_acquire", "completed"]);
}
