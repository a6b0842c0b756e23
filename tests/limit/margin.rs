//! Tests of a quota's safety margin. Late timers, late polls, slow readiness and network delays may each use up a
//! quarter of the margin.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use proptest::prelude::*;
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Service, ServiceExt};
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    limit::{LocalLimiter, RateLimitLayer},
    test_util::Arrivals,
};

use crate::{Pause, millis, support::cases::cases};

/// A quarter of the safety margin. The tests measure every delay in sixteenths of the margin.
const QUARTER: u32 = 4;

/// The delays of one call, in sixteenths of the safety margin.
#[derive(Debug, Clone, Copy)]
struct Delayed {
    /// The time from the wake-up of the call to its poll.
    poll: u32,
    /// The time from the first poll of the inner service to its readiness.
    ready: u32,
    /// The time from the call of the inner service to the arrival at the server.
    network: u32,
}

const PROMPT: Delayed = Delayed { poll: 0, ready: 0, network: 0 };

/// Generates the delays of a prompt or late call. Most delays are at most a quarter of the safety margin. If the poll
/// is later, or the inner service becomes ready later, the call's permit may expire.
fn late() -> impl Strategy<Value = Delayed> {
    let late = |(poll, ready, network)| Delayed { poll, ready, network };
    prop_oneof![
        6 => Just(PROMPT),
        2 => Just(late((QUARTER, QUARTER, QUARTER))),
        1 => (0..=QUARTER, 0..=QUARTER, 0..=QUARTER).prop_map(late),
        4 => (0..=3 * QUARTER, 0..=3 * QUARTER, Just(QUARTER)).prop_map(late),
    ]
}

fn quota() -> impl Strategy<Value = Quota> {
    let burst = prop_oneof![2..6_u32, 6..40_u32].prop_flat_map(|limit| (Just(limit), 1..limit));
    (burst, 1..40_u64, prop::option::of(10..=100_u32)).prop_map(|((limit, burst), window, percent)| {
        let window = Duration::from_secs(window);
        let quota = Quota::new(limit, window).unwrap().with_burst(burst).unwrap();
        percent.map_or(quota, |percent| quota.with_margin(window * percent / 100).unwrap())
    })
}

/// A service that becomes ready some time after its first poll, and records when each request arrives.
#[derive(Clone)]
struct Server {
    late: Delayed,
    /// A sixteenth of the safety margin.
    part: Duration,
    first_polled_at: Option<Instant>,
    /// The time when the service becomes ready. The test polls the call again at that time.
    ready_at: Arc<Mutex<Option<Instant>>>,
    arrivals: Arrivals,
}

impl Service<Request<()>> for Server {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        let late = self.part * self.late.ready;
        let ready_at = *self.first_polled_at.get_or_insert_with(Instant::now) + late;
        if ready_at <= Instant::now() {
            return Poll::Ready(Ok(()));
        }
        *self.ready_at.lock().unwrap() = Some(ready_at);
        Poll::Pending
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.arrivals.extend([Instant::now() + self.part * self.late.network]);
        ready(Ok(Response::new(())))
    }
}

/// A call that the test polls at chosen times.
struct Call<F> {
    /// The future of the call, or `None` after the call has completed.
    future: Option<task::Spawn<F>>,
    late: Duration,
    woken_at: Option<Instant>,
    /// The time when the inner service becomes ready. The next poll of the call resets the time to `None`.
    ready_at: Arc<Mutex<Option<Instant>>>,
}

impl<F: Future> Call<F> {
    /// Polls the call if its inner service is ready, or if `late` has passed since its wake-up. Returns whether the
    /// call was polled.
    fn poll(&mut self, now: Instant) -> bool {
        let Some(future) = &mut self.future else { return false };
        if future.is_woken() {
            self.woken_at.get_or_insert(now);
        }
        let due = |at: &mut Instant| *at <= now;
        let woken = self.woken_at.take_if(|at| *at + self.late <= now).is_some();
        let ready = self.ready_at.lock().unwrap().take_if(due).is_some();
        if woken || ready {
            self.future.take_if(|future| future.poll().is_ready());
        }
        woken || ready
    }
}

/// Two groups of calls. The second group starts `after` sixteenths of the safety margin after the first group. The
/// first group waits during a pause. After the pause, the first waiter takes permits for many calls at once, and those
/// calls are polled later.
#[derive(Debug, Clone)]
struct Groups {
    first: Vec<Delayed>,
    after: u32,
    second: Vec<Delayed>,
}

/// Runs both groups of calls. Returns the arrivals of the requests. The clock advances by `steps`, so a timer fires up
/// to one step late.
async fn arrivals(limiter: LocalLimiter, quota: Quota, groups: &Groups, steps: &[u32]) -> Arrivals {
    let (arrivals, part) = (Arrivals::new(), quota.margin() / (4 * QUARTER));
    let call = |late: &Delayed| {
        let ready_at = Arc::default();
        let server = Server {
            late: *late,
            part,
            first_polled_at: None,
            ready_at: Arc::clone(&ready_at),
            arrivals: arrivals.clone(),
        };
        let future = RateLimitLayer::new(limiter.clone()).layer(server).oneshot(Request::new(()));
        // The first poll of a call is due immediately.
        let woken_at = Some(Instant::now() - part * late.poll);
        Call { future: Some(task::spawn(future)), late: part * late.poll, woken_at, ready_at }
    };
    let start = Instant::now();
    limiter.pause(part);
    let mut calls: Vec<_> = groups.first.iter().map(call).collect();
    let mut second = Some(&groups.second);
    for step in steps.iter().cycle() {
        let now = Instant::now();
        if now >= start + part * groups.after {
            calls.extend(second.take().into_iter().flatten().map(call));
        }
        // The loop repeats, because polling one call may wake another call.
        while calls.iter_mut().fold(false, |polled, call| call.poll(now) | polled) {}
        if second.is_none() && calls.iter().all(|call| call.future.is_none()) {
            break;
        }
        tokio::time::advance(part * *step).await;
    }
    arrivals
}

fn assert_window_holds(
    make: impl Fn(Quota) -> LocalLimiter,
    quota: Quota,
    groups: &Groups,
    steps: &[u32],
) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let arrivals = runtime.unwrap().block_on(async { arrivals(make(quota), quota, groups, steps).await });
    prop_assert_eq!(arrivals.times().len(), groups.first.len() + groups.second.len());
    let most = arrivals.most_in(quota.window());
    prop_assert!(
        most <= u64::from(quota.limit()),
        "{} requests arrived in one window of the quota {}",
        most,
        quota
    );
    Ok(())
}

fn groups() -> impl Strategy<Value = Groups> {
    let group = || prop::collection::vec(late(), 1..24);
    let alike = (late(), 1..24_usize).prop_map(|(late, count)| vec![late; count]);
    let prompt = (1..40_usize).prop_map(|count| vec![PROMPT; count]);
    (prop_oneof![group(), alike], 0..=6 * QUARTER, prop_oneof![group(), prompt])
        .prop_map(|(first, after, second)| Groups { first, after, second })
}

/// Generates a burst of late calls. Right after their arrival, a group of prompt calls uses up the rest of the limit.
fn burst_then_group(quota: Quota) -> impl Strategy<Value = Groups> {
    late().prop_map(move |late| {
        let mut first = vec![late; quota.burst() as usize];
        first[0] = PROMPT; // The first call takes the permits of all late calls.
        let after = 1 + late.poll + late.ready + late.network;
        Groups { first, after, second: vec![PROMPT; quota.limit() as usize + 1] }
    })
}

fn calls() -> impl Strategy<Value = (Quota, Groups)> {
    quota().prop_flat_map(|quota| (Just(quota), prop_oneof![groups(), burst_then_group(quota)]))
}

/// Generates the steps by which the clock advances, each up to a quarter of the safety margin. If all steps have the
/// smallest size, timers fire on time.
fn steps() -> impl Strategy<Value = Vec<u32>> {
    let late = prop::collection::vec(prop_oneof![3 => Just(1), 1 => Just(QUARTER), 1 => 1..=QUARTER], 1..40);
    prop_oneof![Just(vec![1]), late]
}

proptest! {
    #![proptest_config(cases(250))]

    #[test]
    fn token_bucket_stays_within_quota_if_delays_use_up_the_safety_margin(
        (quota, groups) in calls(),
        steps in steps(),
    ) {
        assert_window_holds(LocalLimiter::token_bucket, quota, &groups, &steps)?;
    }

    #[test]
    fn sliding_window_stays_within_quota_if_delays_use_up_the_safety_margin(
        (quota, groups) in calls(),
        steps in steps(),
    ) {
        assert_window_holds(LocalLimiter::sliding_window, quota, &groups, &steps)?;
    }
}

/// In the worst case, a late timer grants a burst, the burst arrives late, and a group of prompt calls arrives right
/// after the burst.
#[test]
fn limiters_stay_within_quota_if_prompt_calls_follow_a_late_burst() {
    let window = Duration::from_secs(16);
    let quota =
        Quota::new(100, window).and_then(|quota| quota.with_burst(20)?.with_margin(window / 4)).unwrap();
    let times = [0, QUARTER, QUARTER + 1, 2 * QUARTER, 3 * QUARTER];
    for (poll, ready) in times.iter().flat_map(|poll| times.map(|ready| (*poll, ready))) {
        for timer in [0, QUARTER] {
            let late = Delayed { poll, ready, network: QUARTER };
            let mut first = vec![late; 20];
            first[0] = PROMPT; // The first call takes the permits of all late calls.
            // The timer is due after one sixteenth of the safety margin.
            let mut steps = vec![1; 2_000];
            steps[0] += timer;
            let after = steps[0] + poll + ready + QUARTER;
            let groups = Groups { first, after, second: vec![PROMPT; 120] };
            assert_window_holds(LocalLimiter::token_bucket, quota, &groups, &steps).unwrap();
            assert_window_holds(LocalLimiter::sliding_window, quota, &groups, &steps).unwrap();
        }
    }
}

/// Runs two calls that wait during a pause. The first call takes permits for both calls, and the second call is late.
/// Returns the number of permits granted.
async fn granted(quota: Quota, poll: Duration, ready: Duration) -> u64 {
    let bucket = LocalLimiter::token_bucket(quota);
    let call = |ready| {
        let (part, ready_at) = (Duration::from_nanos(1), Arc::default());
        let late = Delayed { ready, ..PROMPT };
        let server = Server { late, part, first_polled_at: None, ready_at, arrivals: Arrivals::new() };
        let layer = RateLimitLayer::new(bucket.clone());
        task::spawn(layer.layer(server).oneshot(Request::new(())))
    };
    bucket.pause_until(Instant::now() + Duration::from_secs(1));
    let (mut first, mut second) = (call(0), call(u32::try_from(ready.as_nanos()).unwrap()));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_ready_ok!(first.poll());
    assert_eq!(bucket.snapshot().granted, 2);

    tokio::time::advance(poll).await;
    if second.poll().is_pending() {
        tokio::time::advance(ready).await;
        let _ = second.poll();
    }
    bucket.snapshot().granted
}

#[tokio::test(start_paused = true)]
async fn rate_limit_layer_replaces_a_permit_held_beyond_a_quarter_of_the_margin() {
    let quota = Quota::new(10, Duration::from_secs(60)).and_then(|quota| quota.with_burst(5)).unwrap();
    let (quarter, longer) = (Duration::from_millis(250), Duration::from_nanos(250_000_001));
    for (poll, ready, expected) in [
        (quarter, Duration::ZERO, 2),
        (longer, Duration::ZERO, 3),
        (Duration::ZERO, quarter, 2),
        (Duration::ZERO, longer, 3),
        (quarter, quarter, 2),
        (quarter, longer, 3),
    ] {
        assert_eq!(
            granted(quota, poll, ready).await,
            expected,
            "call polled after {poll:?}, inner service ready after {ready:?}"
        );
    }
}

/// A service that becomes ready `delay` after its first poll, without waking the caller. The service records when each
/// call is made.
#[derive(Clone)]
struct SlowService {
    delay: Duration,
    first_polled_at: Option<Instant>,
    called_at: Arc<Mutex<Vec<Instant>>>,
}

impl Service<Request<()>> for SlowService {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let first = *self.first_polled_at.get_or_insert_with(Instant::now);
        if first.elapsed() >= self.delay { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.called_at.lock().unwrap().push(Instant::now());
        ready(Ok(Response::new(())))
    }
}

#[tokio::test(start_paused = true)]
async fn sliding_window_stays_within_quota_even_if_polls_and_readiness_are_late() {
    let window = Duration::from_secs(10);
    let quota = Quota::new(2, window).unwrap().with_margin(Duration::from_secs(1)).unwrap();
    for (poll_delay, ready_delay) in
        [(0, 0), (249, 249), (251, 0), (0, 251), (499, 499), (1_099, 1_000), (3_000, 3_000)]
    {
        let limiter = LocalLimiter::sliding_window(quota).with_initial_burst(0);
        let called_at = Arc::default();
        let service = |delay| {
            let service = SlowService {
                delay: millis(delay),
                first_polled_at: None,
                called_at: Arc::clone(&called_at),
            };
            RateLimitLayer::new(limiter.clone()).layer(service)
        };
        let mut waiting: Vec<_> = [0, ready_delay, 0, 0]
            .map(|delay| Some(task::spawn(service(delay).oneshot(Request::new(())))))
            .into();
        let mut poll = |calls: &[usize]| {
            for call in calls {
                let slot: &mut Option<task::Spawn<_>> = &mut waiting[*call];
                slot.take_if(|call| call.poll().is_ready());
            }
        };
        poll(&[0, 1]);
        tokio::time::advance(millis(11_001)).await;
        poll(&[0]);
        tokio::time::advance(millis(poll_delay)).await;
        // The test polls the remaining calls every millisecond.
        for _ in 0..60_000 {
            poll(&[1, 2, 3]);
            tokio::time::advance(millis(1)).await;
        }
        let called_at = called_at.lock().unwrap().clone();
        assert_eq!(
            called_at.len(),
            4,
            "call polled {poll_delay} ms late, service ready after {ready_delay} ms"
        );
        let arrivals: Arrivals = called_at.iter().copied().collect();
        assert!(
            arrivals.most_in(window) <= 2,
            "call polled {poll_delay} ms late, service ready after {ready_delay} ms: {called_at:?}"
        );
    }
}
