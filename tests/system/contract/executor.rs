//! An executor that polls tasks in the order of their wake-ups, or with shuffled, late and spurious wake-ups. Only the
//! waker of a task's last poll can wake the task.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::support::{panic_text, secs};

pub(crate) type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// The order and the delays of wake-ups. The default schedule polls tasks in the order of their wake-ups, without
/// delay.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Schedule {
    /// Shuffles the wake-ups if a seed is set.
    pub(crate) seed: Option<u64>,
    /// The number of spurious polls. In a spurious poll, the executor polls a task without a wake-up.
    pub(crate) spurious: u32,
    /// The longest delay of a wake-up.
    pub(crate) max_delay: Duration,
}

/// The splitmix64 random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

#[derive(Default)]
struct WakeQueue {
    /// The number of polls of each task. A wake-up is ignored if its waker is from an earlier poll.
    polls: Vec<u64>,
    woken: Vec<usize>,
    executor: Option<Waker>,
}

struct TaskWaker {
    queue: Arc<Mutex<WakeQueue>>,
    task: usize,
    poll: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut queue = self.queue.lock().unwrap();
        if queue.polls[self.task] == self.poll && !queue.woken.contains(&self.task) {
            queue.woken.push(self.task);
            let executor = queue.executor.clone();
            drop(queue);
            executor.into_iter().for_each(Waker::wake);
        }
    }
}

/// A delayed wake-up. The executor polls the task after `rounds` more rounds, and not before the time `at`.
struct DelayedWake {
    task: usize,
    rounds: u64,
    at: Instant,
}

struct Executor<T> {
    tasks: Vec<Option<Task<T>>>,
    results: Vec<Option<Result<T, String>>>,
    queue: Arc<Mutex<WakeQueue>>,
    delayed: Vec<DelayedWake>,
    random: Option<Random>,
    schedule: Schedule,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Runs the tasks and returns the output of each task. If a task panics, returns the panic message as an error.
///
/// # Panics
///
/// Panics if a task does not complete within an hour of paused time.
pub(crate) async fn run_tasks<T>(tasks: Vec<Task<T>>, schedule: Schedule) -> Vec<Result<T, String>> {
    let count = tasks.len();
    let queue = WakeQueue { polls: vec![0; count], ..WakeQueue::default() };
    let mut executor = Executor {
        tasks: tasks.into_iter().map(Some).collect(),
        results: (0..count).map(|_| None).collect(),
        queue: Arc::new(Mutex::new(queue)),
        delayed: Vec::new(),
        random: None,
        schedule,
        timer: None,
    };
    // The executor first polls all tasks in order, because the first polls determine the order of the limiter's queue.
    poll_fn(|cx| executor.poll_all_in_order(cx)).await;
    executor.random = schedule.seed.map(Random);
    let finished = tokio::time::timeout(secs(3_600), poll_fn(|cx| executor.run_round(cx))).await;
    let left = executor.tasks.iter().filter(|task| task.is_some()).count();
    assert!(finished.is_ok(), "{left} of {count} tasks never completed");
    executor.results.into_iter().flatten().collect()
}

impl<T> Executor<T> {
    fn poll_all_in_order(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.queue.lock().unwrap().woken.clear();
        (0..self.tasks.len()).for_each(|task| self.poll_task(task));
        cx.waker().wake_by_ref();
        Poll::Ready(())
    }

    /// Returns a random number less than `bound`, or 0 if the schedule has no seed.
    fn random_below(&mut self, bound: u64) -> u64 {
        self.random.as_mut().map_or(0, |random| random.below(bound))
    }

    fn run_round(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let woken = {
            let mut queue = self.queue.lock().unwrap();
            queue.executor = Some(cx.waker().clone());
            std::mem::take(&mut queue.woken)
        };
        let now = Instant::now();
        for task in woken {
            let (rounds, max_delay) = (self.random_below(3), self.schedule.max_delay.as_millis() as u64);
            let delay = Duration::from_millis(self.random_below(max_delay + 1));
            self.delayed.push(DelayedWake { task, rounds, at: now + delay });
        }
        let (mut due, delayed) = std::mem::take(&mut self.delayed)
            .into_iter()
            .partition::<Vec<_>, _>(|wake| wake.rounds == 0 && wake.at <= now);
        self.delayed = delayed;
        self.delayed.iter_mut().for_each(|wake| wake.rounds = wake.rounds.saturating_sub(1));
        if self.random.is_some() && self.schedule.spurious > 0 && self.random_below(3) == 0 {
            self.schedule.spurious -= 1;
            let task = self.random_below(self.tasks.len() as u64) as usize;
            due.push(DelayedWake { task, rounds: 0, at: now });
        }
        while !due.is_empty() {
            let next = self.random_below(due.len() as u64) as usize;
            self.poll_task(due.remove(next).task);
        }
        if self.tasks.iter().all(Option::is_none) {
            return Poll::Ready(());
        }
        if self.delayed.iter().any(|wake| wake.at <= now) {
            cx.waker().wake_by_ref();
        } else if let Some(next) = self.delayed.iter().map(|wake| wake.at).min() {
            let timer = self.timer.insert(Box::pin(sleep_until(next)));
            if timer.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    fn poll_task(&mut self, task: usize) {
        let Some(running) = &mut self.tasks[task] else { return };
        let poll = {
            let mut queue = self.queue.lock().unwrap();
            queue.polls[task] += 1;
            queue.polls[task]
        };
        let waker = Waker::from(Arc::new(TaskWaker { queue: Arc::clone(&self.queue), task, poll }));
        let mut cx = Context::from_waker(&waker);
        let result = match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(&mut cx))) {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(panic_text(&*panic).expect("a panic message").to_owned()),
        };
        self.tasks[task] = None;
        self.results[task] = Some(result);
    }
}
