//! Property tests of a quota's safety margin, for every kind of limiter. Late timers, late polls, slow readiness and
//! network delays may each use up a quarter of the margin.

use super::*;

/// A quarter of the safety margin. The tests measure every time in parts: sixteenths of the margin.
const QUARTER: u32 = 4;

/// The delays of one call, in parts.
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

/// A service that becomes ready some time after its first poll, and records when each request arrives.
#[derive(Clone)]
struct Server {
    delay: Duration,
    network: Duration,
    first_polled_at: Option<Instant>,
    /// The time when the service becomes ready. The next poll of the call resets it.
    ready_at: Rc<Cell<Option<Instant>>>,
    arrivals: Arrivals,
}

impl Service<Request<()>> for Server {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        let ready_at = *self.first_polled_at.get_or_insert_with(Instant::now) + self.delay;
        if ready_at <= Instant::now() {
            return Poll::Ready(Ok(()));
        }
        self.ready_at.set(Some(ready_at));
        Poll::Pending
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.arrivals.extend([Instant::now() + self.network]);
        ready(Ok(Response::new(())))
    }
}

/// A call that the test polls at chosen times.
struct Call<F> {
    /// `None` after the call has completed.
    future: Option<task::Spawn<F>>,
    late: Duration,
    woken_at: Option<Instant>,
    ready_at: Rc<Cell<Option<Instant>>>,
}

impl<F: Future> Call<F> {
    /// Polls the call if its inner service is ready, or if the delay has passed since its wake-up. Returns whether the
    /// call was polled.
    fn poll(&mut self, now: Instant) -> bool {
        let Some(future) = &mut self.future else { return false };
        if future.is_woken() {
            self.woken_at.get_or_insert(now);
        }
        let woken = self.woken_at.take_if(|at| *at + self.late <= now).is_some();
        let ready = self.ready_at.take();
        let is_ready = ready.is_some_and(|at| at <= now);
        self.ready_at.set(ready.filter(|_| !is_ready));
        if woken || is_ready {
            self.future.take_if(|future| future.poll().is_ready());
        }
        woken || is_ready
    }
}

/// Two groups of calls. The second group starts `after` parts after the first one, which waits during a pause. After
/// the pause, one wake-up grants permits to many calls at once, and those calls are polled later.
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
        let ready_at = Rc::default();
        let server = Server {
            delay: part * late.ready,
            network: part * late.network,
            first_polled_at: None,
            ready_at: Rc::clone(&ready_at),
            arrivals: arrivals.clone(),
        };
        let future = RateLimitLayer::new(limiter.clone()).layer(server).oneshot(Request::new(()));
        // The first poll of a call is due immediately.
        let woken_at = Some(Instant::now() - part * late.poll);
        Call { future: Some(task::spawn(future)), late: part * late.poll, woken_at, ready_at }
    };
    let start = Instant::now();
    limiter.pause_until(start + part);
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
        advance(part * *step).await;
    }
    arrivals
}

const KINDS: [fn(Quota) -> LocalLimiter; 5] = [
    LocalLimiter::token_bucket,
    LocalLimiter::sliding_window,
    LocalLimiter::paced_window,
    LocalLimiter::adaptive,
    |quota| LocalLimiter::token_bucket([quota, Quota::per_hour(4_000).unwrap()]),
];

fn assert_window_holds(
    kind: usize,
    quota: Quota,
    groups: &Groups,
    steps: &[u32],
) -> Result<(), TestCaseError> {
    let arrivals = run_paused(async { arrivals(KINDS[kind](quota), quota, groups, steps).await });
    prop_assert_eq!(arrivals.times().len(), groups.first.len() + groups.second.len());
    let most = arrivals.most_in(quota.window());
    prop_assert!(most <= quota.limit().into(), "{} requests in one window of the quota {}", most, quota);
    Ok(())
}

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
        let quota = Quota::new(limit, seconds(window)).unwrap().with_burst(burst).unwrap();
        percent.map_or(quota, |percent| quota.with_margin(seconds(window) * percent / 100).unwrap())
    })
}

/// Generates arbitrary groups, or a burst of late calls. Right after the arrival of the burst, a group of prompt calls
/// uses up the rest of the limit.
fn groups(quota: Quota) -> impl Strategy<Value = Groups> {
    let alike = (late(), 1..24_usize).prop_map(|(late, count)| vec![late; count]);
    let prompt = (1..40_usize).prop_map(|count| vec![PROMPT; count]);
    let first = prop_oneof![vec(late(), 1..24), alike];
    let any = (first, 0..=6 * QUARTER, prop_oneof![vec(late(), 1..24), prompt])
        .prop_map(|(first, after, second)| Groups { first, after, second });
    let burst = late().prop_map(move |late| Groups {
        first: once(PROMPT).chain(repeat_n(late, quota.burst() as usize - 1)).collect(),
        after: 1 + late.poll + late.ready + late.network,
        second: vec![PROMPT; quota.limit() as usize + 1],
    });
    prop_oneof![any, burst]
}

/// Generates the steps by which the clock advances, each up to a quarter of the safety margin. If all steps have the
/// smallest size, timers fire on time.
fn steps() -> impl Strategy<Value = Vec<u32>> {
    let step = prop_oneof![3 => Just(1), 1 => Just(QUARTER), 1 => 1..=QUARTER];
    prop_oneof![Just(vec![1]), vec(step, 1..40)]
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn limiters_stay_within_quota_if_delays_use_up_the_safety_margin(
        kind in 0..KINDS.len(),
        (quota, groups) in quota().prop_flat_map(|quota| (Just(quota), groups(quota))),
        steps in steps(),
    ) {
        assert_window_holds(kind, quota, &groups, &steps)?;
    }
}

/// In the worst case, a late timer grants a burst, the burst arrives late, and a group of prompt calls arrives right
/// after the burst.
#[test]
fn limiters_stay_within_quota_if_prompt_calls_follow_a_late_burst() {
    let quota =
        Quota::new(100, seconds(16)).unwrap().with_burst(20).unwrap().with_margin(seconds(4)).unwrap();
    let times = [0, QUARTER, QUARTER + 1, 2 * QUARTER, 3 * QUARTER];
    for (poll, ready) in times.iter().flat_map(|poll| times.map(|ready| (*poll, ready))) {
        for (timer, kind) in [(0, 0), (QUARTER, 0), (0, 1), (QUARTER, 1)] {
            let late = Delayed { poll, ready, network: QUARTER };
            // The timer is due after one part.
            let mut steps = vec![1; 2_000];
            steps[0] += timer;
            let after = steps[0] + poll + ready + QUARTER;
            let first = once(PROMPT).chain(repeat_n(late, 19)).collect();
            assert_window_holds(kind, quota, &Groups { first, after, second: vec![PROMPT; 120] }, &steps)
                .unwrap();
        }
    }
}
