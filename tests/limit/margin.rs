//! The safety margin of a quota. Timers, polls, readiness and the network share it, a quarter each.

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
use tokio_test::task;
use tower::{Service, ServiceExt};
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    limit::{Feedback, Limiter, RateLimitLayer, SlidingWindow, TokenBucket},
    test_util::Arrivals,
};

use crate::cases::cases;

/// The margin has four quarters. Every delay is a number of sixteenths of the margin.
const QUARTER: u32 = 4;

/// The delays of one call: from its wake to its poll, until its inner service is ready, and until it arrives.
#[derive(Debug, Clone, Copy)]
struct Late {
    poll: u32,
    ready: u32,
    network: u32,
}

const PROMPT: Late = Late { poll: 0, ready: 0, network: 0 };

/// Mixes prompt calls with calls that use up every quarter. Polls and readiness may be even later, and then the permits
/// expire.
fn late() -> impl Strategy<Value = Late> {
    let late = |(poll, ready, network)| Late { poll, ready, network };
    prop_oneof![
        6 => Just(PROMPT),
        2 => Just(late((QUARTER, QUARTER, QUARTER))),
        1 => (0..=QUARTER, 0..=QUARTER, 0..=QUARTER).prop_map(late),
        2 => (0..=3 * QUARTER, 0..=3 * QUARTER, Just(QUARTER)).prop_map(late),
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

/// Becomes ready some time after its first poll, and records when each request arrives at the server.
#[derive(Clone)]
struct Server {
    late: Late,
    part: Duration,
    since: Option<Instant>,
    /// When to poll again.
    ready_at: Arc<Mutex<Option<Instant>>>,
    arrivals: Arrivals,
}

impl Service<Request<()>> for Server {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        let late = self.part * self.late.ready;
        let ready_at = *self.since.get_or_insert_with(Instant::now) + late;
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

/// One call, which the test polls by hand.
struct Call<F> {
    /// `None` after its end.
    future: Option<task::Spawn<F>>,
    late: Duration,
    woken_at: Option<Instant>,
    /// Reset when the call is polled for it.
    ready_at: Arc<Mutex<Option<Instant>>>,
}

impl<F: Future> Call<F> {
    /// Polls the call if its wake or its readiness is due. Returns whether it did.
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

/// Two crowds of calls, some time apart. The first queues behind a pause, so that the head's timer grants to many tasks
/// at once, which are polled later.
#[derive(Debug, Clone)]
struct Crowds {
    first: Vec<Late>,
    after: u32,
    second: Vec<Late>,
}

/// Runs the calls. The clock jumps by `steps`, so a timer fires up to one step late.
async fn arrivals<L: Limiter>(limiter: L, quota: Quota, crowds: &Crowds, steps: &[u32]) -> Arrivals {
    let (arrivals, part) = (Arrivals::new(), quota.margin() / (4 * QUARTER));
    let call = |late: &Late| {
        let ready_at = Arc::default();
        let server = Server {
            late: *late,
            part,
            since: None,
            ready_at: Arc::clone(&ready_at),
            arrivals: arrivals.clone(),
        };
        let future = RateLimitLayer::new(limiter.clone()).layer(server).oneshot(Request::new(()));
        // Due for its first poll at once.
        let woken_at = Some(Instant::now() - part * late.poll);
        Call { future: Some(task::spawn(future)), late: part * late.poll, woken_at, ready_at }
    };
    let start = Instant::now();
    limiter.observe(&Feedback::pause(part));
    let mut calls: Vec<_> = crowds.first.iter().map(call).collect();
    let mut second = Some(&crowds.second);
    for step in steps.iter().cycle() {
        let now = Instant::now();
        if now >= start + part * crowds.after {
            calls.extend(second.take().into_iter().flatten().map(call));
        }
        // Repeats, because a polled call may wake others.
        while calls.iter_mut().fold(false, |polled, call| call.poll(now) | polled) {}
        if second.is_none() && calls.iter().all(|call| call.future.is_none()) {
            break;
        }
        tokio::time::advance(part * *step).await;
    }
    arrivals
}

fn assert_window_holds<L: Limiter>(
    make: impl Fn(Quota) -> L,
    quota: Quota,
    crowds: &Crowds,
    steps: &[u32],
) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let arrivals = runtime.unwrap().block_on(async { arrivals(make(quota), quota, crowds, steps).await });
    prop_assert_eq!(arrivals.count(), crowds.first.len() + crowds.second.len());
    let most = arrivals.most_in(quota.window());
    prop_assert!(most <= u64::from(quota.limit()), "{} under {}", most, quota);
    Ok(())
}

fn crowds() -> impl Strategy<Value = Crowds> {
    let crowd = || prop::collection::vec(late(), 1..24);
    let alike = (late(), 1..24_usize).prop_map(|(late, count)| vec![late; count]);
    let prompt = (1..40_usize).prop_map(|count| vec![PROMPT; count]);
    (prop_oneof![crowd(), alike], 0..=6 * QUARTER, prop_oneof![crowd(), prompt])
        .prop_map(|(first, after, second)| Crowds { first, after, second })
}

/// Steps of the clock, up to a quarter of the margin.
fn steps() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![3 => Just(1), 1 => Just(QUARTER), 1 => 1..=QUARTER], 1..40)
}

proptest! {
    #![proptest_config(cases(250))]

    #[test]
    fn token_bucket_holds_the_window_at_the_server_when_all_quarters_are_used_up(
        quota in quota(),
        crowds in crowds(),
        steps in steps(),
    ) {
        assert_window_holds(TokenBucket::new, quota, &crowds, &steps)?;
    }

    #[test]
    fn sliding_window_holds_the_window_at_the_server_when_all_quarters_are_used_up(
        quota in quota(),
        crowds in crowds(),
        steps in steps(),
    ) {
        assert_window_holds(SlidingWindow::new, quota, &crowds, &steps)?;
    }
}

/// The worst case of a bucket: its burst arrives late, and a prompt crowd follows when it has refilled.
#[test]
fn late_burst_and_prompt_crowd_together_hold_the_window() {
    let window = Duration::from_secs(16);
    let quota =
        Quota::new(80, window).and_then(|quota| quota.with_burst(40)?.with_margin(window / 4)).unwrap();
    let times = [0, QUARTER, QUARTER + 1, 2 * QUARTER, 3 * QUARTER];
    for (poll, ready) in times.iter().flat_map(|poll| times.map(|ready| (*poll, ready))) {
        let late = Late { poll, ready, network: QUARTER };
        let after = 1 + poll + ready + QUARTER;
        let mut first = vec![late; 40];
        first[0] = PROMPT; // grants to all others
        let crowds = Crowds { first, after, second: vec![PROMPT; 60] };
        assert_window_holds(TokenBucket::new, quota, &crowds, &[1]).unwrap();
        assert_window_holds(SlidingWindow::new, quota, &crowds, &[1]).unwrap();
    }
}
