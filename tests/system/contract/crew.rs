//! Runs tasks on a schedule: in order, or with wake-ups that are shuffled, late and spurious. Of a task's wakers only the
//! last one works.

use std::{
    any::Any,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

use super::probe::secs;

pub(crate) type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// `None` keeps to the order of the wake-ups.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Schedule {
    pub(crate) seed: Option<u64>,
    /// So often, a task is polled that nobody woke.
    pub(crate) spurious: u32,
    /// A wake-up comes so much later, at the most.
    pub(crate) late: Duration,
}

/// splitmix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

#[derive(Default)]
struct Desk {
    /// The number of each task's last poll.
    turns: Vec<u64>,
    rung: Vec<usize>,
    crew: Option<Waker>,
}

struct Bell {
    desk: Arc<Mutex<Desk>>,
    task: usize,
    turn: u64,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let mut desk = self.desk.lock().unwrap();
        if desk.turns[self.task] == self.turn && !desk.rung.contains(&self.task) {
            desk.rung.push(self.task);
            let crew = desk.crew.clone();
            drop(desk);
            crew.into_iter().for_each(Waker::wake);
        }
    }
}

/// A wake-up on its way.
struct Held {
    task: usize,
    rounds: u64,
    at: Instant,
}

struct Crew<T> {
    tasks: Vec<Option<Task<T>>>,
    ends: Vec<Option<Result<T, String>>>,
    desk: Arc<Mutex<Desk>>,
    held: Vec<Held>,
    dice: Option<Dice>,
    schedule: Schedule,
    timer: Option<Pin<Box<Sleep>>>,
}

/// What came of each task, or what it panicked with. Fails when nobody will ever wake one.
pub(crate) async fn crew<T>(tasks: Vec<Task<T>>, schedule: Schedule) -> Vec<Result<T, String>> {
    let count = tasks.len();
    let desk = Desk { turns: vec![0; count], ..Desk::default() };
    let mut crew = Crew {
        tasks: tasks.into_iter().map(Some).collect(),
        ends: (0..count).map(|_| None).collect(),
        desk: Arc::new(Mutex::new(desk)),
        held: Vec::new(),
        dice: None,
        schedule,
        timer: None,
    };
    // All begin in order, or others would be first in line.
    poll_fn(|cx| crew.begin(cx)).await;
    crew.dice = schedule.seed.map(Dice);
    let rounds = tokio::time::timeout(secs(3_600), poll_fn(|cx| crew.round(cx))).await;
    let left = crew.tasks.iter().filter(|task| task.is_some()).count();
    assert!(rounds.is_ok(), "{left} of {count} tasks are never woken");
    crew.ends.into_iter().flatten().collect()
}

impl<T> Crew<T> {
    fn begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.desk.lock().unwrap().rung.clear();
        (0..self.tasks.len()).for_each(|task| self.poll(task));
        cx.waker().wake_by_ref();
        Poll::Ready(())
    }

    fn roll(&mut self, bound: u64) -> u64 {
        self.dice.as_mut().map_or(0, |dice| dice.below(bound))
    }

    fn round(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let rung = {
            let mut desk = self.desk.lock().unwrap();
            desk.crew = Some(cx.waker().clone());
            std::mem::take(&mut desk.rung)
        };
        let now = Instant::now();
        for task in rung {
            let (rounds, late) = (self.roll(3), self.schedule.late.as_millis() as u64);
            let late = Duration::from_millis(self.roll(late + 1));
            self.held.push(Held { task, rounds, at: now + late });
        }
        let (mut due, held) = std::mem::take(&mut self.held)
            .into_iter()
            .partition::<Vec<_>, _>(|held| held.rounds == 0 && held.at <= now);
        self.held = held;
        self.held.iter_mut().for_each(|held| held.rounds = held.rounds.saturating_sub(1));
        if self.dice.is_some() && self.schedule.spurious > 0 && self.roll(3) == 0 {
            self.schedule.spurious -= 1;
            let task = self.roll(self.tasks.len() as u64) as usize;
            due.push(Held { task, rounds: 0, at: now });
        }
        while !due.is_empty() {
            let next = self.roll(due.len() as u64) as usize;
            self.poll(due.remove(next).task);
        }
        if self.tasks.iter().all(Option::is_none) {
            return Poll::Ready(());
        }
        if self.held.iter().any(|held| held.at <= now) {
            cx.waker().wake_by_ref();
        } else if let Some(next) = self.held.iter().map(|held| held.at).min() {
            let timer = self.timer.insert(Box::pin(sleep_until(next)));
            if timer.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    fn poll(&mut self, task: usize) {
        let Some(running) = &mut self.tasks[task] else { return };
        let turn = {
            let mut desk = self.desk.lock().unwrap();
            desk.turns[task] += 1;
            desk.turns[task]
        };
        let waker = Waker::from(Arc::new(Bell { desk: Arc::clone(&self.desk), task, turn }));
        let mut cx = Context::from_waker(&waker);
        let end = match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(&mut cx))) {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(end)) => Ok(end),
            Err(panic) => Err(text_of(&*panic)),
        };
        self.tasks[task] = None;
        self.ends[task] = Some(end);
    }
}

pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a panic without a text")
}
