//! Corners of the limiter: what a request that need not wait costs, for how long permits may be held, other people's
//! limiters, and what is shown of it all. On paused time.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Service, ServiceExt};
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    call::RequestHead,
    error::Reason,
    limit::{
        Acquire, AnyLimiter, Keyed, Limiter, Permit, PermitIssuer, PermitRequest, RateLimitLayer,
        ResponseInfo, SelectLimiter, SlidingWindow, TokenBucket,
    },
};

const ONE: NonZeroU32 = NonZeroU32::MIN;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One permit at once, and then one a second.
fn one_a_second() -> Quota {
    Quota::new(11, Duration::from_secs(10)).unwrap().with_burst(1).unwrap().without_margin()
}

/// The line is made for the first who has to ask it: most keys of a service never do.
#[tokio::test(start_paused = true)]
async fn a_request_that_need_not_wait_allocates_nothing_from_the_first_one_on() {
    let bucket = TokenBucket::new(one_a_second());
    let granted = allocation_counter::measure(|| {
        assert!(assert_ready!(task::spawn(bucket.acquire()).poll()).is_ok());
    });
    let task = allocation_counter::measure(|| drop(task::spawn(ready(()))));
    assert_eq!(granted.count_total, task.count_total);
    let refused = allocation_counter::measure(|| {
        assert_eq!(bucket.try_acquire().unwrap_err().wait(), Some(Duration::from_secs(1)));
    });
    assert_eq!(refused.count_total, 0);
    let kept = allocation_counter::measure(|| std::mem::forget(TokenBucket::new(one_a_second())));
    assert!(kept.count_current <= 2, "the limiter and its bucket: {kept:?}");
}

/// Without a margin a permit expires after 1/32 of the window, at most 50 ms.
#[tokio::test(start_paused = true)]
async fn permit_expires_after_a_quarter_of_the_margin() {
    let quota = |window, margin| Quota::new(10, millis(window)).unwrap().with_margin(millis(margin)).unwrap();
    for (quotas, longest) in [
        (vec![quota(60_000, 1_000)], 250),
        (vec![quota(60_000, 100)], 25),
        (vec![quota(60_000, 4)], 1),
        (vec![quota(160, 40)], 10),
        (vec![Quota::new(10, millis(64)).unwrap()], 1),
        (vec![quota(60_000, 0)], 50),
        (vec![quota(160, 0)], 5),
        (vec![quota(60_000, 1_000), quota(160, 0)], 5),
    ] {
        for limiter in [
            AnyLimiter::new(TokenBucket::all_of(quotas.clone())),
            AnyLimiter::new(SlidingWindow::all_of(quotas.clone())),
        ] {
            let request = Request::new(());
            let permit = limiter.acquire_for(RequestHead::of(&request), &PermitRequest::new()).await.unwrap();
            advance(millis(longest) - Duration::from_nanos(1)).await;
            for expired in [false, false, true] {
                assert_eq!(permit.is_expired(), expired, "{quotas:?}");
                advance(Duration::from_nanos(1)).await;
            }
        }
    }
    let unlimited = TokenBucket::unlimited();
    let permit = unlimited.try_acquire().unwrap();
    advance(Duration::from_secs(1_000_000)).await;
    assert!(!permit.is_expired(), "permits of an unlimited limiter do not expire");
}

/// Ready only some time after it was first asked.
#[derive(Clone)]
struct Delayed(Duration, Option<Instant>);

impl Service<Request<()>> for Delayed {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        let asked = *self.1.get_or_insert_with(Instant::now);
        match asked.elapsed() >= self.0 {
            true => std::task::Poll::Ready(Ok(())),
            false => {
                let (waker, left) = (cx.waker().clone(), self.0 - asked.elapsed());
                tokio::spawn(async move {
                    tokio::time::sleep(left).await;
                    waker.wake();
                });
                std::task::Poll::Pending
            }
        }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

#[tokio::test(start_paused = true)]
async fn permits_that_are_fresh_enough_are_used_and_stale_ones_renewed_whatever_the_bounds_were() {
    for (takes, granted) in [(50, 1), (51, 2)] {
        let limiter = TokenBucket::new(one_a_second());
        let layer = RateLimitLayer::new(limiter.clone()).with_max_wait(Duration::ZERO).with_max_queue(0);
        // It was let in: the bounds of its first wait say nothing of the second.
        layer.layer(Delayed(millis(takes), None)).oneshot(Request::new(())).await.unwrap();
        assert_eq!(limiter.snapshot().granted, granted, "after {takes} ms");
    }
}

type Log = Arc<Mutex<Vec<&'static str>>>;

/// Grants every permit without an issuer.
#[derive(Debug, Clone, Default)]
struct Open(Log);

impl Limiter for Open {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        self.0.lock().unwrap().push("acquire");
        Acquire::ready(Ok(Permit::new(request.cost())))
    }
}

/// Grants every permit and logs its outcome.
#[derive(Debug, Clone, Default)]
struct Noting(Log);

impl Limiter for Noting {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        self.0.lock().unwrap().push("acquire");
        Acquire::ready(Ok(Permit::new(request.cost()).with_issuer(Arc::new(self.clone()))))
    }
}

impl PermitIssuer for Noting {
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        self.0.lock().unwrap().push("is_expired");
        permit.granted_at().elapsed() > millis(10)
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) {
        assert!(permit.sent_at().is_some_and(|sent| sent <= response.received_at()));
        let pause = response.requested_pause();
        assert_eq!(pause, (response.status() == 429).then_some(Duration::from_secs(7)));
        assert_eq!(response.headers().len(), usize::from(response.status() != 200));
        self.0.lock().unwrap().push("completed");
    }

    fn dropped(&self, permit: &Permit<'_>) {
        self.0.lock().unwrap().push(if permit.sent_at().is_some() { "unconfirmed" } else { "wasted" });
    }
}

async fn call<L: SelectLimiter + Clone + 'static>(limiter: L, status: u16, takes: u64) {
    let answer = move |_: Request<()>| async move {
        match status {
            0 => Err("gone"),
            200 => Ok(Response::new(())),
            _ => Ok(Response::builder().status(status).header("retry-after", "7").body(()).unwrap()),
        }
    };
    let inner = Delayed(millis(takes), None)
        .map_err(|never: Infallible| -> &str { match never {} })
        .and_then(move |_| answer(Request::new(())));
    let _ = RateLimitLayer::new(limiter).layer(inner).oneshot(Request::new(())).await;
}

#[tokio::test(start_paused = true)]
async fn custom_limiter_learns_the_outcome_of_every_permit() {
    for (status, takes, log) in [
        (200, 0, &["acquire", "completed"][..]),
        (429, 0, &["acquire", "completed"]),
        (404, 0, &["acquire", "completed"]),
        (0, 0, &["acquire", "unconfirmed"]),
        (200, 10, &["acquire", "is_expired", "completed"]),
        (200, 11, &["acquire", "is_expired", "wasted", "acquire", "completed"]),
    ] {
        let (bare, any) = (Noting::default(), Noting::default());
        call(bare.clone(), status, takes).await;
        call(AnyLimiter::new(any.clone()), status, takes).await;
        for noting in [&bare, &any] {
            assert_eq!(*noting.0.lock().unwrap(), log, "{status} after {takes} ms");
        }
    }
    // Without an issuer a permit expires as soon as time has passed.
    for (status, takes, log) in
        [(429, 0, &["acquire"][..]), (0, 0, &["acquire"]), (200, 1, &["acquire", "acquire"])]
    {
        let open = Open::default();
        call(open.clone(), status, takes).await;
        assert_eq!(*open.0.lock().unwrap(), log, "{status} after {takes} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_permit_counts_as_not_sent() {
    let noting = Noting::default();
    let mut permit = noting.acquire_with(&PermitRequest::new()).await.unwrap();
    permit.mark_sent(Instant::now());
    assert!(format!("{permit:?}").starts_with("Permit { cost: 1, granted_at: Instant"), "{permit:?}");
    permit.release();
    assert_eq!(*noting.0.lock().unwrap(), ["acquire", "wasted"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_is_counted_from_nothing_on() {
    let bucket = TokenBucket::new(one_a_second());
    assert_eq!(bucket.snapshot().refused, 0);
    bucket.try_acquire().unwrap();
    for refused in 1..=3 {
        assert_eq!(bucket.try_acquire().unwrap_err().reason(), Reason::MaxWait);
        assert_eq!(bucket.snapshot().refused, refused);
    }
}

/// A million permits owed, each of which takes a year to come back.
#[tokio::test(start_paused = true)]
async fn a_change_to_a_quota_of_years_neither_overflows_nor_forgets() {
    let fast = Quota::per_second(2_000_000).unwrap().with_burst(1_000_000).unwrap().without_margin();
    let slow =
        Quota::new(2, Duration::from_secs(366 * 86_400)).unwrap().with_burst(1).unwrap().without_margin();
    let bucket = TokenBucket::new(fast);
    bucket.try_acquire_many(NonZeroU32::new(1_000_000).unwrap()).unwrap();
    bucket.set_quotas([slow]);
    let wait = bucket.try_acquire().unwrap_err().wait().unwrap();
    let years = wait.as_secs() / (365 * 86_400);
    assert!((100..150).contains(&years), "{years}");
    bucket.set_quotas([fast]);
    assert!(bucket.try_acquire().is_err());
    advance(Duration::from_secs(2)).await;
    assert_eq!(bucket.snapshot().available, 1_000_000);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_full_finds_any_key_that_is_idle() {
    // 40 keys a shard, half of them idle after a second. A few looks would miss those now and then.
    let long = Quota::new(2, Duration::from_secs(3_600)).unwrap().with_burst(1).unwrap().without_margin();
    let make = move |key: &u32| TokenBucket::new(if key % 2 == 0 { long } else { one_a_second() });
    let keyed = Keyed::with_max_keys(640, |_| 0, make);
    assert!(keyed.is_empty());
    for key in 0..10_000 {
        if let Ok(limiter) = keyed.limiter(&key) {
            limiter.try_acquire().unwrap();
        }
    }
    assert_eq!((keyed.len(), keyed.is_empty()), (640, false));
    advance(Duration::from_secs(1)).await;
    for key in 0..60 {
        keyed.limiter(&(20_000 + 2 * key)).unwrap().try_acquire().unwrap();
    }
    assert_eq!(keyed.len(), 640);
}

/// Of one key a shard; whether the one of key 0 is let go when nothing of it is owed, under way, paused or held any more.
macro_rules! goes_when_it_may {
    ($limiter:ident, $quotas:expr) => {
        for (what, until) in [("owed", 1_001), ("given up", 10_101), ("paused", 60_001), ("held", 0)] {
            let keyed = Keyed::with_max_keys(16, |_| 0, move |_: &u32| $limiter::all_of($quotas));
            // After others have asked for its place.
            let is_kept = || {
                for other in 1..500 {
                    let _ = keyed.limiter(&other);
                }
                keyed.limiter(&0).is_ok_and(|limiter| limiter.snapshot().granted == 1)
            };
            let limiter = keyed.limiter(&0).unwrap();
            let mut permit = limiter.try_acquire_owned().unwrap();
            match what {
                "given up" => permit.mark_sent(Instant::now()),
                "paused" => limiter.pause_until(Instant::now() + millis(60_000)),
                _ => {}
            }
            drop(permit);
            if what == "held" {
                advance(millis(100_000)).await;
                assert!(is_kept(), "{what}");
                continue;
            }
            drop(limiter);
            advance(millis(until - 200)).await;
            assert!(is_kept(), "{what}");
            advance(millis(200)).await;
            assert!(!is_kept(), "{what}");
        }
    };
}

#[tokio::test(start_paused = true)]
async fn a_key_is_let_go_when_nothing_of_it_is_owed_under_way_paused_or_held() {
    let window = Quota::new(1, millis(1_000)).unwrap().without_margin();
    goes_when_it_may!(TokenBucket, [one_a_second()]);
    goes_when_it_may!(TokenBucket, [one_a_second(), one_a_second()]);
    goes_when_it_may!(SlidingWindow, [window]);
    goes_when_it_may!(SlidingWindow, [window, window]);
}

#[cfg(feature = "quanta")]
#[tokio::test(start_paused = true)]
async fn the_fast_clock_knows_nothing_of_paused_time() {
    let hours = Quota::new(2, Duration::from_secs(36_000)).unwrap().with_burst(1).unwrap().without_margin();
    let bucket = TokenBucket::with_quanta_clock([hours]);
    bucket.try_acquire().unwrap();
    advance(Duration::from_secs(36_000)).await;
    assert!(bucket.try_acquire().is_err());
}

#[tokio::test(start_paused = true)]
async fn each_part_of_the_limiter_says_what_it_is() {
    let bucket = TokenBucket::new(one_a_second());
    bucket.try_acquire().unwrap();
    let window = SlidingWindow::new(one_a_second());
    let keyed = Keyed::with_max_keys(20, |_| 0, |_: &u32| TokenBucket::unlimited());
    let layer = RateLimitLayer::new(bucket.clone());
    let mut waiting = task::spawn(Box::pin(layer.layer(Delayed(millis(1), None)).call(Request::new(()))));
    let acquiring = format!("{:?}", *waiting);
    assert_pending!(waiting.poll());
    advance(Duration::from_secs(2)).await;
    assert_pending!(waiting.poll());
    let readying = format!("{:?}", *waiting);
    advance(millis(2)).await;
    assert!(assert_ready!(waiting.poll()).is_ok());
    for (shown, start) in [
        (format!("{bucket:?}"), "LocalLimiter { snapshot: Snapshot { available: "),
        (format!("{:?}", window.acquire_with(&PermitRequest::new())), "Acquire { .."),
        (format!("{:?}", AnyLimiter::new(bucket.clone())), "AnyLimiter { inner: LocalLimiter {"),
        (format!("{keyed:?}"), "Keyed { room: 32"),
        (format!("{layer:?}"), "RateLimitLayer {"),
        (format!("{:?}", layer.layer(ONE)), "RateLimit {"),
        (acquiring, r#"rate_limit::ResponseFuture { state: "acquiring""#),
        (readying, r#"rate_limit::ResponseFuture { state: "readying""#),
    ] {
        assert!(shown.starts_with(start), "{shown}");
    }
}
