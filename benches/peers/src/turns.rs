//! Rows that take turns: every round measures each row for a moment, so that whatever else the machine does
//! falls on all of them, and ratios are taken within a round.

use std::{
    fmt,
    future::Future,
    hint::black_box,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::runtime::Runtime;

use crate::{BoxError, Column, Table, median, now, runtime};

/// Calls between two looks at the clock or the stop sign.
const BATCH: u64 = 64;

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The length of one turn.
    pub turn: Duration,
    /// The turns of each row.
    pub rounds: usize,
}

/// What was done in a turn: thread-nanoseconds, calls, and how many of those said yes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turn {
    nanos: f64,
    calls: u64,
    yes: u64,
}

impl Turn {
    fn and(self, other: Self) -> Self {
        Self { nanos: self.nanos + other.nanos, calls: self.calls + other.calls, yes: self.yes + other.yes }
    }
}

pub(crate) type Measure = Box<dyn FnMut(Duration) -> Result<Turn, BoxError>>;

/// Something to measure in several ways, against the row of the name `base`.
pub(crate) struct Row<const WAYS: usize> {
    pub(crate) name: &'static str,
    pub(crate) base: &'static str,
    pub(crate) ways: [Option<Measure>; WAYS],
}

/// Rows of the same work, measured in turns: by one thread, by two, by eight tasks on two workers.
pub struct Contest {
    rows: Vec<Row<3>>,
    /// Of each row, for a call.
    allocations: Vec<f64>,
    /// What every call has to answer.
    expected: bool,
    pair: Arc<Runtime>,
}

impl fmt::Debug for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contest").field("rows", &self.rows.len()).finish_non_exhaustive()
    }
}

impl Contest {
    /// With no rows yet. Every call has to answer `expected`.
    pub fn new(expected: bool) -> Result<Self, BoxError> {
        Ok(Self { rows: Vec::new(), allocations: Vec::new(), expected, pair: Arc::new(runtime(2)?) })
    }

    /// A row whose clones share what they call.
    pub fn row<O>(&mut self, name: &'static str, base: &'static str, op: O)
    where
        O: FnMut() -> bool + Clone + Send + Sync + 'static,
    {
        let (two, eight, pair) = (op.clone(), op.clone(), Arc::clone(&self.pair));
        self.single(name, base, op);
        if let Some(row) = self.rows.last_mut() {
            row.ways[1] = Some(Box::new(move |turn| Ok(two_threads(&two, turn))));
            row.ways[2] = Some(Box::new(move |turn| eight_tasks(&pair, &eight, turn)));
        }
    }

    /// A row of something that can't be shared.
    pub fn single<O>(&mut self, name: &'static str, base: &'static str, mut op: O)
    where
        O: FnMut() -> bool + 'static,
    {
        self.allocations.push(allocations(|calls| (0..calls).for_each(|_| _ = black_box(op()))));
        self.rows.push(Row { name, base, ways: [Some(by_one_thread(op)), None, None] });
    }

    /// A row of something that needs a runtime to answer, made on the runtime that it is used on.
    pub fn on_runtime<M, O, F>(
        &mut self,
        name: &'static str,
        base: &'static str,
        make: M,
    ) -> Result<(), BoxError>
    where
        M: Fn() -> O,
        O: FnMut() -> F + Clone + Send + Sync + 'static,
        F: Future<Output = bool> + Send,
    {
        let single = runtime(1)?;
        let mut op = single.block_on(async { make() });
        self.allocations.push(allocations(|calls| {
            single.block_on(async {
                for _ in 0..calls {
                    op().await;
                }
            });
        }));
        let one: Measure = Box::new(move |turn| {
            let stop = now() + turn;
            Ok(single.block_on(turns(&mut op, || now() >= stop)))
        });
        let op = self.pair.block_on(async { make() });
        let (pair, blocking) = (Arc::clone(&self.pair), op.clone());
        let two: Measure = Box::new(move |turn| {
            Ok(timed(turn, |stopped| {
                let mut op = blocking.clone();
                pair.block_on(turns(&mut op, stopped))
            }))
        });
        let pair = Arc::clone(&self.pair);
        let eight: Measure = Box::new(move |turn| eight_loops(&pair, &op, turn));
        self.rows.push(Row { name, base, ways: [Some(one), Some(two), Some(eight)] });
        Ok(())
    }

    /// Nanoseconds a call, as one of the threads sees it, by row; and the ratio to the row's base.
    pub fn run(mut self, id: &'static str, title: &str, settings: Settings) -> Result<Table, BoxError> {
        let figures = compare(&mut self.rows, self.expected, settings)?;
        let mut table = Table::new(
            id,
            title,
            [
                Column::new("1 thread", "ns", 1).plotted(),
                Column::new("× base", "", 2),
                Column::new("2 threads", "ns", 1).plotted(),
                Column::new("× base", "", 2),
                Column::new("8 tasks on 2 workers", "ns", 1).plotted(),
                Column::new("× base", "", 2),
                Column::new("allocations", "", 2),
            ],
        );
        for ((row, mut values), allocations) in self.rows.iter().zip(figures).zip(self.allocations) {
            values.push(Some(allocations));
            table.row(row.name, values);
        }
        Ok(table)
    }
}

/// Nanoseconds a call and their ratio to the base's, of each row, way after way.
pub(crate) fn compare<const WAYS: usize>(
    rows: &mut [Row<WAYS>],
    expected: bool,
    settings: Settings,
) -> Result<Vec<Vec<Option<f64>>>, BoxError> {
    let mut samples = vec![[const { Vec::new() }; WAYS]; rows.len()];
    for round in 0..=settings.rounds {
        for (row, samples) in rows.iter_mut().zip(&mut samples) {
            for (way, samples) in row.ways.iter_mut().zip(samples) {
                let Some(measure) = way else { continue };
                let turn = measure(settings.turn)?;
                if turn.yes != if expected { turn.calls } else { 0 } {
                    return Err(format!("{}: {} of {} granted", row.name, turn.yes, turn.calls).into());
                }
                // The first round warms up.
                if round > 0 && turn.calls > 0 {
                    samples.push(turn.nanos / turn.calls as f64);
                }
            }
        }
    }
    let figures = |(row, own): (&Row<WAYS>, &[Vec<f64>; WAYS])| {
        let base = rows.iter().position(|other| other.name == row.base);
        let figures = own.iter().enumerate().flat_map(|(way, own)| {
            let base = base.map_or(&[][..], |base| &samples[base][way]);
            let ratios: Vec<_> = own.iter().zip(base).map(|(own, base)| own / base).collect();
            [(!own.is_empty()).then(|| median(own.clone())), (!ratios.is_empty()).then(|| median(ratios))]
        });
        figures.collect()
    };
    Ok(rows.iter().zip(&samples).map(figures).collect())
}

/// For each call, once whatever grows at first has grown.
fn allocations(mut calls: impl FnMut(u64)) -> f64 {
    calls(2_000);
    allocation_counter::measure(|| calls(1_000)).count_total as f64 / 1e3
}

pub(crate) fn by_one_thread(mut op: impl FnMut() -> bool + 'static) -> Measure {
    Box::new(move |turn| Ok(one_thread(&mut op, turn)))
}

fn one_thread(op: &mut impl FnMut() -> bool, turn: Duration) -> Turn {
    let (start, mut done) = (now(), Turn::default());
    loop {
        for _ in 0..BATCH {
            done.yes += u64::from(black_box(op()));
        }
        done.calls += BATCH;
        let elapsed = start.elapsed();
        if elapsed >= turn {
            done.nanos = elapsed.as_nanos() as f64;
            return done;
        }
    }
}

fn two_threads(op: &(impl FnMut() -> bool + Clone + Sync), turn: Duration) -> Turn {
    timed(turn, |stopped| {
        let (mut op, start, mut done) = (op.clone(), now(), Turn::default());
        while !stopped() {
            for _ in 0..BATCH {
                done.yes += u64::from(black_box(op()));
            }
            done.calls += BATCH;
        }
        Turn { nanos: start.elapsed().as_nanos() as f64, ..done }
    })
}

/// The same work on two threads that start together and are told to stop.
fn timed(turn: Duration, work: impl Fn(&dyn Fn() -> bool) -> Turn + Sync) -> Turn {
    let (stop, start) = (AtomicBool::new(false), Barrier::new(2));
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| {
            scope.spawn(|| {
                start.wait();
                work(&|| stop.load(Ordering::Relaxed))
            })
        });
        thread::sleep(turn);
        stop.store(true, Ordering::Relaxed);
        let turns = threads.into_iter().map(|thread| thread.join().unwrap_or_default());
        turns.fold(Turn::default(), Turn::and)
    })
}

fn eight_tasks<O>(pair: &Runtime, op: &O, turn: Duration) -> Result<Turn, BoxError>
where
    O: FnMut() -> bool + Clone + Send + 'static,
{
    spawn_eight(pair, turn, |stop| {
        let mut op = op.clone();
        async move {
            let mut done = Turn::default();
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..BATCH {
                    done.yes += u64::from(black_box(op()));
                }
                done.calls += BATCH;
                tokio::task::yield_now().await;
            }
            done
        }
    })
}

fn eight_loops<O, F>(pair: &Runtime, op: &O, turn: Duration) -> Result<Turn, BoxError>
where
    O: FnMut() -> F + Clone + Send + 'static,
    F: Future<Output = bool> + Send,
{
    spawn_eight(pair, turn, |stop| {
        let mut op = op.clone();
        async move { turns(&mut op, move || stop.load(Ordering::Relaxed)).await }
    })
}

fn spawn_eight<F>(
    pair: &Runtime,
    turn: Duration,
    task: impl Fn(Arc<AtomicBool>) -> F,
) -> Result<Turn, BoxError>
where
    F: Future<Output = Turn> + Send + 'static,
{
    let (start, stop) = (now(), Arc::new(AtomicBool::new(false)));
    let tasks = [(); 8].map(|()| pair.spawn(task(Arc::clone(&stop))));
    thread::sleep(turn);
    stop.store(true, Ordering::Relaxed);
    let mut done = Turn::default();
    for task in tasks {
        done = done.and(pair.block_on(task)?);
    }
    // Of the two workers, not of the eight tasks.
    Ok(Turn { nanos: 2.0 * start.elapsed().as_nanos() as f64, ..done })
}

async fn turns<F: Future<Output = bool>>(op: &mut impl FnMut() -> F, stopped: impl Fn() -> bool) -> Turn {
    let (start, mut done) = (now(), Turn::default());
    while !stopped() {
        done.yes += u64::from(op().await);
        done.calls += 1;
    }
    Turn { nanos: start.elapsed().as_nanos() as f64, ..done }
}
