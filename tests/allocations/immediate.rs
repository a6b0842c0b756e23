//! Permits that are available immediately: taken without a future for the wait, and otherwise as by any wait.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    num::NonZeroU32,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tower::{Service, ServiceExt};
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    error::{Reason, Refusal},
    limit::{
        Acquire, AnyLimiter, Limiter, Permit, PermitIssuer, PermitRequest, RateLimitLayer, ResponseInfo,
        SelectLimiter, SlidingWindow, Snapshot, TokenBucket,
    },
};

const SECOND: Duration = Duration::from_secs(1);

/// So many at once, and then one a second.
fn quota(burst: u32) -> Quota {
    Quota::new(burst + 10, 10 * SECOND).unwrap().with_burst(burst).unwrap().without_margin()
}

fn takes(limiter: &impl Limiter) -> bool {
    limiter.try_acquire_with(&PermitRequest::new()).is_some_and(|outcome| outcome.is_ok())
}

/// Returns `None`, without side effects.
#[track_caller]
fn is_undecided(bucket: &TokenBucket, ask: &PermitRequest) {
    let counted =
        |snapshot: Snapshot| (snapshot.granted, snapshot.refused, snapshot.in_flight, snapshot.queued);
    let before = counted(bucket.snapshot());
    assert!(bucket.try_acquire_with(ask).is_none());
    assert_eq!(counted(bucket.snapshot()), before);
}

#[tokio::test(start_paused = true)]
async fn what_is_there_is_granted_and_counted_once_as_by_a_wait() {
    let (bucket, waited) = (TokenBucket::new(quota(5)), TokenBucket::new(quota(5)));
    let mut permits = Vec::new();
    for cost in [1, 3] {
        let ask = PermitRequest::new().with_cost(NonZeroU32::new(cost).unwrap());
        permits.push(bucket.try_acquire_with(&ask).unwrap().unwrap());
        permits.push(waited.acquire_with(&ask).await.unwrap());
        assert_eq!(bucket.snapshot(), waited.snapshot());
    }
    let snapshot = bucket.snapshot();
    assert_eq!((snapshot.granted, snapshot.in_flight, snapshot.available), (4, 4, 1));
    is_undecided(&bucket, &PermitRequest::new().with_cost(NonZeroU32::new(2).unwrap()));
    assert!(takes(&bucket));
    is_undecided(&bucket, &PermitRequest::new());
    drop(permits);
    assert_eq!((bucket.snapshot().granted, bucket.snapshot().in_flight), (5, 0));
    advance(SECOND).await;
    assert!(takes(&bucket));
}

#[tokio::test(start_paused = true)]
async fn nobody_who_waits_is_overtaken_nor_who_was_called_and_is_on_the_way() {
    let bucket = TokenBucket::new(quota(3));
    assert!((0..3).all(|_| takes(&bucket)));
    let mut waiting = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(waiting.poll());
    is_undecided(&bucket, &PermitRequest::new());
    // All three are there by now, and the first is the line's.
    advance(4 * SECOND).await;
    is_undecided(&bucket, &PermitRequest::new());

    // Called by a newcomer, who lets it go first. The third is nobody's.
    let mut newcomer = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(newcomer.poll());
    assert!(waiting.is_woken() && bucket.snapshot().available == 1);
    is_undecided(&bucket, &PermitRequest::new());
    assert_ready_ok!(waiting.poll());
    is_undecided(&bucket, &PermitRequest::new());
    assert_ready_ok!(newcomer.poll());
    assert!(takes(&bucket), "the way is open again");
}

#[tokio::test(start_paused = true)]
async fn what_the_server_has_said_is_left_to_the_line() {
    let bucket = TokenBucket::new(quota(5));
    bucket.pause_until(Instant::now() + SECOND);
    is_undecided(&bucket, &PermitRequest::new());
    let paused = PermitRequest::new().with_max_wait(Duration::ZERO);
    assert_eq!(bucket.acquire_with(&paused).await.unwrap_err().wait(), Some(SECOND));
    bucket.resume();
    let permit = bucket.try_acquire().unwrap();

    let two_left = [(HeaderName::from_static("ratelimit"), HeaderValue::from_static("\"a\";r=2;t=1"))];
    let two_left = HeaderMap::from_iter(two_left);
    permit.complete(&ResponseInfo::new(StatusCode::OK, &two_left));
    for _ in 0..2 {
        is_undecided(&bucket, &PermitRequest::new());
        bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    }
    assert_pending!(task::spawn(bucket.acquire_with(&PermitRequest::new())).poll());
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_in_time_is_refused_once_by_the_wait() {
    let bucket = TokenBucket::new(quota(5));
    let late = PermitRequest::new().with_deadline(Instant::now());
    advance(SECOND).await;
    let large = PermitRequest::new().with_cost(NonZeroU32::new(6).unwrap());
    for (number, (ask, reason)) in
        [(late, Reason::Deadline), (large, Reason::TooCostly { largest: 5 })].into_iter().enumerate()
    {
        is_undecided(&bucket, &ask);
        assert_eq!(bucket.acquire_with(&ask).await.unwrap_err().reason(), reason);
        assert_eq!((bucket.snapshot().granted, bucket.snapshot().refused), (0, number as u64 + 1));
    }

    // And so in a call.
    let layer = RateLimitLayer::new(bucket.clone()).with_cost(|_| NonZeroU32::new(6).unwrap());
    assert!(layer.layer(echo()).oneshot(Request::new(())).await.is_err());
    assert_eq!((bucket.snapshot().granted, bucket.snapshot().refused), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn where_there_is_no_way_without_the_lock_all_is_left_to_the_line() {
    let changed = TokenBucket::new(quota(5));
    changed.set_quotas([quota(4)]);
    let several = TokenBucket::all_of([quota(5), quota(4)]);
    for bucket in [changed, several, TokenBucket::unlimited()] {
        is_undecided(&bucket, &PermitRequest::new());
        bucket.acquire_with(&PermitRequest::new()).await.unwrap();
    }
    let window = SlidingWindow::new(quota(5));
    assert!(window.try_acquire_with(&PermitRequest::new()).is_none());
    assert_eq!(window.snapshot().granted, 0);
}

fn echo()
-> impl Service<Request<()>, Response = Response<()>, Error = Infallible, Future: Send> + Clone + Send {
    tower::service_fn(|_: Request<()>| ready(Ok(Response::new(()))))
}

#[tokio::test(start_paused = true)]
async fn a_call_spends_nothing_before_its_first_poll_and_gives_back_what_it_took() {
    let bucket = TokenBucket::new(quota(5));
    let in_flight = || (bucket.snapshot().granted, bucket.snapshot().in_flight);
    let mut service = RateLimitLayer::new(bucket.clone()).layer(echo());
    drop(service.call(Request::new(())));
    let unpolled = service.call(Request::new(()));
    assert_eq!(in_flight(), (0, 0));
    unpolled.await.unwrap();
    assert_eq!(in_flight(), (1, 0));

    // Granted, and dropped before there was room below.
    let never = tower::util::BoxCloneService::new(echo());
    let closed =
        tower::limit::ConcurrencyLimit::with_semaphore(never, Arc::new(tokio::sync::Semaphore::new(0)));
    let mut granted = task::spawn(RateLimitLayer::new(bucket.clone()).layer(closed).call(Request::new(())));
    assert_pending!(granted.poll());
    assert_eq!(in_flight(), (2, 1));
    drop(granted);
    assert_eq!(in_flight(), (2, 0));
}

/// What is at hand: granted, refused or not known at once.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Says {
    Yes,
    No,
    Nothing,
}

/// Writes down what it is asked.
#[derive(Debug, Clone)]
struct Noting {
    says: Says,
    asked: Arc<Asked>,
}

#[derive(Debug)]
struct Asked(Mutex<Vec<&'static str>>);

impl Noting {
    fn new(says: Says) -> Self {
        // So much room that noting allocates nothing.
        Self { says, asked: Arc::new(Asked(Mutex::new(Vec::with_capacity(64)))) }
    }

    fn note(&self, asked: &'static str) {
        self.asked.0.lock().unwrap().push(asked);
    }

    fn read(&self) -> Vec<&'static str> {
        self.asked.0.lock().unwrap().drain(..).collect()
    }
}

impl Limiter for Noting {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        self.note("acquire");
        let issuer = Arc::clone(&self.asked) as Arc<dyn PermitIssuer>;
        Acquire::new(ready(Ok(Permit::new(request.cost()).with_issuer(issuer))))
    }

    fn try_acquire_with(&self, request: &PermitRequest) -> Option<Result<Permit<'static>, Refusal>> {
        self.note("try");
        let issuer = Arc::clone(&self.asked) as Arc<dyn PermitIssuer>;
        match self.says {
            Says::Yes => Some(Ok(Permit::new(request.cost()).with_issuer(issuer))),
            Says::No => Some(Err(Refusal::new(Reason::QueueFull, SECOND))),
            Says::Nothing => None,
        }
    }
}

impl PermitIssuer for Asked {
    fn completed(&self, _: &Permit<'_>, _: &ResponseInfo<'_>) {
        self.0.lock().unwrap().push("completed");
    }

    fn dropped(&self, permit: &Permit<'_>) {
        self.0.lock().unwrap().push(if permit.sent_at().is_some() { "unconfirmed" } else { "wasted" });
    }
}

/// Polls a call to its end.
fn call(limiter: impl SelectLimiter + Clone) -> bool {
    let cx = &mut Context::from_waker(Waker::noop());
    let mut future = pin!(RateLimitLayer::new(limiter).layer(echo()).call(Request::new(())));
    let outcome = assert_ready!(future.as_mut().poll(cx));
    if let Err(error) = &outcome {
        assert_eq!(error.retry_after(), Some(SECOND));
        assert!(error.is_rate_limited());
    }
    outcome.is_ok()
}

#[test]
fn a_limiter_is_asked_at_once_first_and_for_the_wait_only_where_it_can_not_say() {
    for (says, asked) in [
        (Says::Yes, &["try", "completed"][..]),
        (Says::No, &["try"]),
        (Says::Nothing, &["try", "acquire", "completed"]),
    ] {
        let noting = Noting::new(says);
        for outcome in [call(noting.clone()), call(AnyLimiter::new(noting.clone()))] {
            assert_eq!(outcome, says != Says::No);
        }
        assert_eq!(noting.read(), asked.repeat(2), "{says:?}");
    }
}

/// Without a word about it.
#[derive(Debug, Clone)]
struct Open;

impl Limiter for Open {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        Acquire::ready(Ok(Permit::new(request.cost())))
    }
}

#[test]
fn any_limiter_allocates_only_for_what_may_wait() {
    let allocated = |limiter: AnyLimiter| {
        let mut service = RateLimitLayer::new(limiter).layer(echo());
        let cx = &mut Context::from_waker(Waker::noop());
        let mut call = || {
            let future = pin!(service.call(Request::new(())));
            assert!(assert_ready!(future.poll(cx)).is_ok());
        };
        // The window remembers it.
        call();
        allocation_counter::measure(call).count_total
    };
    for (limiter, allocations) in [
        (AnyLimiter::new(Noting::new(Says::Yes)), 0),
        (AnyLimiter::new(TokenBucket::new(quota(5))), 0),
        (AnyLimiter::new(Noting::new(Says::Nothing)), 1),
        (AnyLimiter::new(SlidingWindow::new(quota(5))), 0),
        (AnyLimiter::new(Open), 0),
    ] {
        let shown = format!("{limiter:?}");
        assert_eq!(allocated(limiter), allocations, "{shown}");
    }
}

/// Without room for the request until a second after it was asked.
#[derive(Clone)]
struct Delayed(Option<Instant>);

impl Service<Request<()>> for Delayed {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        match self.0.get_or_insert_with(Instant::now).elapsed() >= SECOND {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

#[tokio::test(start_paused = true)]
async fn replaces_an_expired_permit() {
    let noting = Noting::new(Says::Yes);
    let mut future =
        task::spawn(RateLimitLayer::new(noting.clone()).layer(Delayed(None)).call(Request::new(())));
    assert_pending!(future.poll());
    advance(SECOND).await;
    assert!(assert_ready!(future.poll()).is_ok());
    assert_eq!(noting.read(), ["try", "wasted", "try", "completed"]);
}

/// On 64 bits. The wait's timer alone is 112 bytes.
#[cfg(target_pointer_width = "64")]
#[test]
fn a_call_is_little_larger_than_its_request() {
    let future = RateLimitLayer::new(TokenBucket::new(quota(5))).layer(echo()).call(Request::new(()));
    let beside = size_of_val(&future) - size_of::<Request<()>>();
    assert!(beside <= 200, "{beside} bytes");
}
