//! Tests of the futures in the queue: wake-ups, and futures that are dropped or not polled.

use super::*;

#[tokio::test(start_paused = true)]
async fn each_grant_wakes_at_most_two_waiters_whatever_the_queue_length() {
    const WAITERS: usize = 5_000;
    let (bucket, polls) = (refilling(100, 100).with_initial_burst(0), Arc::new(AtomicUsize::new(0)));
    let mut waiting = JoinSet::new();
    for _ in 0..WAITERS {
        let (mut acquire, polls) = (bucket.acquire(), Arc::clone(&polls));
        waiting.spawn(std::future::poll_fn(move |cx| {
            polls.fetch_add(1, Relaxed);
            pin!(&mut acquire).poll(cx).map(|permit| drop(permit.unwrap()))
        }));
    }
    waiting.join_all().await;
    // The first poll of each waiter is not a wake-up.
    let wakes = polls.load(Relaxed) - WAITERS;
    assert!(wakes <= 2 * WAITERS, "{wakes} wake-ups for {WAITERS} grants");
}

#[tokio::test(start_paused = true)]
async fn grant_wakes_only_the_task_that_polled_the_waiter_last() {
    let bucket = LocalLimiter::token_bucket(one_per_second()).with_initial_burst(0);
    let waiter = Arc::new(std::sync::Mutex::new(bucket.acquire()));
    let mut tasks = [(); 2].map(|()| {
        let waiter = Arc::clone(&waiter);
        task::spawn(std::future::poll_fn(move |cx| pin!(&mut *waiter.lock().unwrap()).poll(cx)))
    });
    tasks.iter_mut().for_each(|task| assert_pending!(task.poll()));
    advance(seconds(2)).await;
    yield_now().await;
    assert_eq!(tasks.each_ref().map(|task| task.is_woken()), [false, true]);
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Creates an acquire future. The future joins the queue at its first poll.
    Join,
    /// Polls or drops one of the futures: the step's number modulo the count of futures.
    Poll,
    Drop,
    /// Polls every future whose task was woken.
    PollWoken,
    /// Sleeps, or pauses the limiter, for up to three seconds.
    Sleep,
    Pause,
}
use Step::{Drop, Join, Pause, Poll, PollWoken, Sleep};

const STEPS: [Step; 14] =
    [Join, Join, Join, Poll, Poll, PollWoken, PollWoken, PollWoken, Drop, Drop, Sleep, Sleep, Sleep, Pause];

/// Applies `steps` to acquire futures in all states: unpolled, queued, first in the queue, woken, or waiting for the
/// end of a pause.
async fn run_steps(steps: &[(Step, usize)]) -> Result<(), TestCaseError> {
    let bucket = refilling(1, 3);
    let (mut waiting, mut granted) = (Vec::<task::Spawn<Acquire>>::new(), Vec::new());
    for (step, number) in steps {
        let mut poll = |waiting: &mut Vec<task::Spawn<Acquire>>, at: usize| {
            if let std::task::Poll::Ready(permit) = waiting[at].poll() {
                granted.push(permit.unwrap());
                drop(waiting.remove(at));
            }
        };
        let (at, time) = (number % waiting.len().max(1), millis((number % 3_000) as u64));
        match step {
            Join => waiting.push(task::spawn(bucket.acquire())),
            Poll if !waiting.is_empty() => poll(&mut waiting, at),
            PollWoken => {
                // The loop repeats, because polling one waiter may wake another waiter.
                while let Some(at) = waiting.iter().position(task::Spawn::is_woken) {
                    poll(&mut waiting, at);
                }
                let snapshot = bucket.snapshot();
                // The snapshot may be the first to notice that permits are available. It then wakes a late waiter, which
                // takes them when it is polled.
                let is_idle = snapshot.queued > 0 && snapshot.available > 0;
                let is_woken = waiting.iter().any(task::Spawn::is_woken);
                prop_assert!(!is_idle || is_woken, "idle permits: {:?}", snapshot);
            }
            Drop if !waiting.is_empty() => {
                let (before, woken) = (bucket.snapshot(), waiting[at].is_woken());
                drop(waiting.remove(at));
                let after = bucket.snapshot();
                // A permit that was offered to a woken waiter may go to the next one.
                prop_assert!(woken || after.granted == before.granted, "{:?}, then {:?}", before, after);
                let lost =
                    (after.granted - after.awaiting_response) - (before.granted - before.awaiting_response);
                prop_assert!(lost <= u64::from(woken), "dropping one waiter lost {} permits", lost);
            }
            Poll | Drop => {}
            // A sleep lets the runtime fire timers, unlike `tokio::time::advance`.
            Sleep => sleep(time).await,
            Pause => bucket.pause_until(Instant::now() + time),
        }
    }
    // All remaining waiters eventually get their permits. Afterwards, exactly the granted permits are in flight.
    bucket.resume();
    for permit in futures_util::future::join_all(waiting).await {
        granted.push(permit.unwrap());
    }
    prop_assert_eq!(bucket.snapshot().awaiting_response, granted.len() as u64);
    sleep(Duration::from_secs(4)).await;
    prop_assert_eq!((bucket.snapshot().available, bucket.snapshot().queued), (3, 0));
    Ok(())
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn dropping_a_waiter_loses_at_most_one_permit(
        steps in vec((prop::sample::select(&STEPS[..]), any::<usize>()), 1..80),
    ) {
        run_paused(run_steps(&steps))?;
    }
}
