//! What a wait in line costs and what it is worth: the rate kept, the bounds of those behind, late polls, calls that
//! are dropped. On paused time.

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use crate::support::cases::cases;
use http::{Request, Response};
use proptest::prelude::*;
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    error::Reason,
    limit::{Limiter, PermitRequest, RateLimitLayer, SlidingWindow, TokenBucket},
    test_util::Arrivals,
};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Refills `rate` a second.
fn refilling(rate: u32, burst: u32) -> TokenBucket {
    let quota = Quota::per_second(rate + burst).unwrap().with_burst(burst).unwrap().without_margin();
    TokenBucket::new(quota)
}

/// A line as long as a second, from a moment that lies anywhere between two ticks of the timers.
async fn rate_kept(rate: u32, burst: u32, cost: u32, phase: u64) -> f64 {
    tokio::time::sleep(millis(3)).await;
    tokio::time::advance(Duration::from_micros(phase)).await;
    let bucket = refilling(rate, burst).with_initial_burst(0);
    let (start, calls) = (Instant::now(), rate.clamp(300, 3_000) / cost);
    let cost = NonZeroU32::new(cost).unwrap();
    let waiting: Vec<_> = (0..calls)
        .map(|_| {
            let acquire = bucket.acquire_with(&PermitRequest::new().with_cost(cost));
            tokio::spawn(async move {
                acquire.await.unwrap();
                Instant::now()
            })
        })
        .collect();
    let mut last = start;
    for wait in waiting {
        last = last.max(wait.await.unwrap());
    }
    f64::from(calls * cost.get()) / f64::from(rate) / (last - start).as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_the_cost_and_what_refills_in_2_ms_keeps_any_rate() {
    for rate in [100_u32, 300, 450, 700, 900, 1_300, 2_700, 7_000, 10_000, 13_000] {
        for cost in [1, 2, 5] {
            let burst = (rate * 2).div_ceil(1_000) + cost;
            for burst in [burst, burst * 2, burst * 5] {
                for phase in [0, 370, 610, 930] {
                    let kept = rate_kept(rate, burst, cost, phase).await;
                    assert!(kept > 0.99, "{rate}/s, burst {burst}, cost {cost}, {phase} us: {kept}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_was_let_in_is_served_in_time_and_the_head_sleeps_on_for_nobodys_loss() {
    for (phase, room) in [(0, 1_000), (370, 1_000), (370, 2_000), (777, 1_000)] {
        tokio::time::advance(Duration::from_micros(phase)).await;
        let bucket = refilling(1_000, 10).with_initial_burst(0);
        let mut waiting = Vec::new();
        for number in 0..300 {
            let foretold = bucket.try_acquire().unwrap_err().wait().unwrap();
            let bound = (number % 5 == 4).then(|| foretold + Duration::from_micros(room));
            let acquire = bucket.acquire_with(
                &bound.map_or(PermitRequest::new(), |bound| PermitRequest::new().with_max_wait(bound)),
            );
            let start = Instant::now();
            waiting.push(tokio::spawn(async move {
                acquire.await.unwrap();
                assert!(
                    bound.is_none_or(|bound| start.elapsed() <= bound),
                    "{:?}, {bound:?}",
                    start.elapsed()
                );
            }));
            tokio::task::yield_now().await;
        }
        for wait in waiting {
            wait.await.unwrap();
        }
    }
}

/// How late each of a line was served that began to wait at once, a permit a millisecond.
async fn lateness(calls: u64) -> Vec<Duration> {
    // Not at the limiter's origin, and at a tick of the timers.
    let bucket = refilling(1_000, 100).with_initial_burst(0);
    tokio::time::advance(millis(10_000)).await;
    let (bucket, start) = (bucket.with_initial_burst(0), Instant::now());
    let waiting: Vec<_> = (0..calls)
        .map(|_| {
            let acquire = bucket.acquire_with(&PermitRequest::new());
            tokio::spawn(async move { acquire.await.map(|_| Instant::now()) })
        })
        .collect();
    let mut late = Vec::new();
    for (wait, due) in waiting.into_iter().zip(1..) {
        late.push(wait.await.unwrap().unwrap() - start - millis(due));
    }
    late
}

#[tokio::test(start_paused = true)]
async fn a_long_line_is_served_in_groups_and_nobody_waits_a_sixteenth_longer() {
    let late = lateness(1_000).await;
    let groups = late.windows(2).filter(|pair| pair[0] <= pair[1]).count();
    assert!((190..=350).contains(&groups), "{groups} groups, 4 ms apart where the line is long");
    assert!(late.iter().all(|late| *late <= millis(5)), "{late:?}");
    // The whole line takes 16 ms.
    let late = lateness(16).await;
    assert!(late.iter().all(|late| *late <= millis(2)), "{late:?}");
    // Who waits alone waits for nobody, however much it asks for.
    let bucket = refilling(1_000, 100).with_initial_burst(0);
    let start = Instant::now();
    bucket.acquire_with(&PermitRequest::new().with_cost(NonZeroU32::new(50).unwrap())).await.unwrap();
    assert!(start.elapsed() <= millis(51), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn after_its_deadline_a_request_spends_nothing() {
    let (bucket, window) =
        (refilling(10, 10), SlidingWindow::new(Quota::per_second(10).unwrap().without_margin()));
    tokio::time::advance(millis(5_000)).await;
    let late = PermitRequest::new().with_deadline(Instant::now() - millis(1));
    assert_eq!(bucket.acquire_with(&late).await.unwrap_err().reason(), Reason::Deadline);
    assert_eq!(window.acquire_with(&late).await.unwrap_err().reason(), Reason::Deadline);
    assert_eq!((bucket.snapshot().granted, window.snapshot().granted), (0, 0));
    let now = PermitRequest::new().with_deadline(Instant::now());
    bucket.acquire_with(&now).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_is_called_and_never_comes_is_not_waited_for_for_ever() {
    let bucket = refilling(1, 10);
    while bucket.try_acquire().is_ok() {}
    let mut head = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    let mut forgotten = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(head.poll());
    assert_pending!(forgotten.poll());
    tokio::time::advance(millis(60_000)).await;
    assert_ready_ok!(head.poll(), "and the other one is called, too");
    let mut polite = task::spawn(bucket.acquire_with(&PermitRequest::new()));
    assert_pending!(polite.poll(), "lets the other one go first, once");
    assert_ready_ok!(polite.poll());
    tokio::time::advance(millis(101)).await;
    assert_ready_ok!(
        task::spawn(bucket.acquire_with(&PermitRequest::new())).poll(),
        "no more than once and for 100 ms"
    );
}

#[tokio::test(start_paused = true)]
async fn once_all_who_were_called_have_come_a_newcomer_goes_at_once() {
    let bucket = refilling(1, 10);
    while bucket.try_acquire().is_ok() {}
    let mut waiting = [(); 2].map(|()| task::spawn(bucket.acquire_with(&PermitRequest::new())));
    for wait in &mut waiting {
        assert_pending!(wait.poll());
    }
    tokio::time::advance(millis(60_000)).await;
    for wait in &mut waiting {
        assert_ready_ok!(wait.poll());
    }
    assert_ready_ok!(task::spawn(bucket.acquire_with(&PermitRequest::new())).poll());
}

/// The gap that an indivisible cost leaves is not foretold: it shows when the request is next.
#[tokio::test(start_paused = true)]
async fn who_is_next_and_can_not_go_in_time_is_told_the_wait_from_then_on() {
    let window = SlidingWindow::new(Quota::new(3, millis(10_000)).unwrap().without_margin());
    let two = NonZeroU32::new(2).unwrap();
    window.try_acquire().unwrap();
    tokio::time::advance(millis(5_000)).await;
    window.try_acquire_many(two).unwrap();
    let first = tokio::spawn(window.acquire_with(&PermitRequest::new().with_cost(two)));
    tokio::task::yield_now().await;
    let bounded = PermitRequest::new().with_cost(two).with_max_wait(millis(16_000));
    let refusal = window.acquire_with(&bounded).await.unwrap_err();
    first.await.unwrap().unwrap();
    assert_eq!(refusal.reason(), Reason::MaxWait);
    let wait = refusal.wait().unwrap();
    assert!(wait > millis(9_900) && wait <= millis(10_001), "{wait:?}");
}

/// Has room only some time after it was first asked, and notes when it was called.
#[derive(Clone)]
struct Room {
    after: Duration,
    asked: Option<Instant>,
    called: Arc<Mutex<Vec<Instant>>>,
}

impl tower::Service<Request<()>> for Room {
    type Response = Response<()>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Response<()>, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let asked = *self.asked.get_or_insert_with(Instant::now);
        if asked.elapsed() >= self.after { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.called.lock().unwrap().push(Instant::now());
        std::future::ready(Ok(Response::new(())))
    }
}

#[tokio::test(start_paused = true)]
async fn window_holds_however_late_a_task_is_polled_and_the_inner_service_is_ready() {
    let window = Duration::from_secs(10);
    let quota = Quota::new(2, window).unwrap().with_margin(Duration::from_secs(1)).unwrap();
    for (polled, room) in [(0, 0), (249, 249), (251, 0), (0, 251), (499, 499), (1_099, 1_000), (3_000, 3_000)]
    {
        let limiter = SlidingWindow::new(quota).with_initial_burst(0);
        let called = Arc::default();
        let service = |after| {
            let room = Room { after: millis(after), asked: None, called: Arc::clone(&called) };
            RateLimitLayer::new(limiter.clone()).layer(room)
        };
        let mut waiting: Vec<_> =
            [0, room, 0, 0].map(|room| Some(task::spawn(service(room).oneshot(Request::new(()))))).into();
        let mut poll = |calls: &[usize]| {
            for call in calls {
                let slot: &mut Option<task::Spawn<_>> = &mut waiting[*call];
                slot.take_if(|call| call.poll().is_ready());
            }
        };
        poll(&[0, 1]);
        tokio::time::advance(millis(11_001)).await;
        poll(&[0]);
        tokio::time::advance(millis(polled)).await;
        // From here on each as early as it can.
        for _ in 0..60_000 {
            poll(&[1, 2, 3]);
            tokio::time::advance(millis(1)).await;
        }
        let called = called.lock().unwrap().clone();
        assert_eq!(called.len(), 4, "polled {polled} ms late, room after {room} ms");
        let arrivals: Arrivals = called.iter().copied().collect();
        assert!(arrivals.most_in(window) <= 2, "polled {polled} ms late, room {room} ms late: {called:?}");
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// One more comes.
    Join,
    /// Polls the one at this place, of those that are there.
    Poll(usize),
    /// Polls all that are woken.
    PollWoken,
    Drop(usize),
    /// Milliseconds.
    Pass(u64),
    Pause(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Join),
        2 => any::<usize>().prop_map(Step::Poll),
        3 => Just(Step::PollWoken),
        2 => any::<usize>().prop_map(Step::Drop),
        3 => (0..2_500_u64).prop_map(Step::Pass),
        1 => (0..3_000_u64).prop_map(Step::Pause),
    ];
    prop::collection::vec(step, 1..80)
}

/// Waits that are joined, polled and dropped at any point: unpolled, waiting, at the head, called, in a pause.
async fn nothing_is_lost(steps: &[Step]) -> Result<(), TestCaseError> {
    let bucket = refilling(1, 3);
    let mut waiting: Vec<task::Spawn<_>> = Vec::new();
    let mut served = Vec::new();
    for step in steps {
        let only = |at: &usize| (!waiting.is_empty()).then(|| at % waiting.len());
        match step {
            Step::Join => waiting.push(task::spawn(bucket.acquire_with(&PermitRequest::new()))),
            Step::Poll(at) => {
                let Some(at) = only(at) else { continue };
                if let Poll::Ready(permit) = waiting[at].poll() {
                    served.push(permit.unwrap());
                    drop(waiting.remove(at));
                }
            }
            Step::PollWoken => {
                // The polled wake others.
                while let Some(at) = waiting.iter().position(task::Spawn::is_woken) {
                    if let Poll::Ready(permit) = waiting[at].poll() {
                        served.push(permit.unwrap());
                        drop(waiting.remove(at));
                    }
                }
                let snapshot = bucket.snapshot();
                prop_assert!(snapshot.queued == 0 || snapshot.available == 0, "idle permits: {:?}", snapshot);
            }
            Step::Drop(at) => {
                if let Some(at) = only(at) {
                    let (before, called) = (bucket.snapshot(), waiting[at].is_woken());
                    drop(waiting.remove(at));
                    let after = bucket.snapshot();
                    prop_assert_eq!(after.granted, before.granted, "dropping spends nothing");
                    let lost = before.in_flight - after.in_flight;
                    prop_assert!(lost <= u64::from(called), "{} lost", lost);
                }
            }
            // The timers are looked at where the runtime gets to it.
            Step::Pass(time) => tokio::time::sleep(millis(*time)).await,
            Step::Pause(time) => bucket.pause_until(Instant::now() + millis(*time)),
        }
    }
    // Who is left is served in the end, and each permit that is not lost is one of those served.
    bucket.resume();
    for wait in futures_util::future::join_all(waiting).await {
        served.push(wait.unwrap());
    }
    prop_assert_eq!(bucket.snapshot().in_flight, served.len() as u64);
    tokio::time::sleep(millis(4_000)).await;
    prop_assert_eq!(bucket.snapshot().available, 3);
    prop_assert_eq!(bucket.snapshot().queued, 0);
    Ok(())
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn a_wait_dropped_at_any_point_loses_its_own_grant_at_the_most(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(nothing_is_lost(&steps))?;
    }
}
