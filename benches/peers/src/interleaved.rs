//! Measures the rows of a table in turn.
//!
//! Each round measures every row briefly, so that other load on the machine affects all rows. Ratios are computed
//! within a round.

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

use crate::{BoxError, Column, Table, median, now, progress, runtime};

/// The number of calls between two checks of the clock or of the stop flag.
const BATCH: u64 = 64;

/// The settings of a measurement: the length of a sample and the number of rounds.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The length of one sample of one row.
    pub sample: Duration,
    /// The number of measured rounds. Each round takes one sample of each row.
    pub rounds: usize,
}

/// The totals of all calls in one sample.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    /// The time of all threads together, in nanoseconds.
    nanos: f64,
    calls: u64,
    granted: u64,
}

impl Sample {
    fn plus(self, other: Self) -> Self {
        Self {
            nanos: self.nanos + other.nanos,
            calls: self.calls + other.calls,
            granted: self.granted + other.granted,
        }
    }
}

pub(crate) type Measure = Box<dyn FnMut(Duration) -> Result<Sample, BoxError>>;

/// An operation that is measured in several setups. `base` is the name of the row to compare with.
pub(crate) struct Row<const SETUPS: usize> {
    pub(crate) name: &'static str,
    pub(crate) base: &'static str,
    pub(crate) setups: [Option<Measure>; SETUPS],
}

/// Compares limiters on one thread, on two threads, and in eight tasks on two workers. The rows are interleaved.
pub struct LimiterComparison {
    rows: Vec<Row<3>>,
    /// The allocations per call of each row.
    allocations: Vec<f64>,
    /// The result that every call must have: `true` for a grant, `false` for a refusal.
    expected: bool,
    two_workers: Arc<Runtime>,
}

impl fmt::Debug for LimiterComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterComparison").field("rows", &self.rows.len()).finish_non_exhaustive()
    }
}

impl LimiterComparison {
    /// Creates a comparison without rows. Every call must return `expected`.
    pub fn new(expected: bool) -> Result<Self, BoxError> {
        let two_workers = Arc::new(runtime(2)?);
        Ok(Self { rows: Vec::new(), allocations: Vec::new(), expected, two_workers })
    }

    /// Adds a row for an operation whose clones share one limiter.
    pub fn row<O>(&mut self, name: &'static str, base: &'static str, op: O)
    where
        O: FnMut() -> bool + Clone + Send + Sync + 'static,
    {
        let (two, eight, two_workers) = (op.clone(), op.clone(), Arc::clone(&self.two_workers));
        self.single(name, base, op);
        if let Some(row) = self.rows.last_mut() {
            row.setups[1] = Some(Box::new(move |length| Ok(two_threads(&two, length))));
            row.setups[2] = Some(Box::new(move |length| eight_tasks(&two_workers, &eight, length)));
        }
    }

    /// Adds a row for an operation that cannot be shared. The row is measured on one thread only.
    pub fn single<O>(&mut self, name: &'static str, base: &'static str, mut op: O)
    where
        O: FnMut() -> bool + 'static,
    {
        self.allocations.push(allocations(|calls| (0..calls).for_each(|_| _ = black_box(op()))));
        self.rows.push(Row { name, base, setups: [Some(on_one_thread(op)), None, None] });
    }

    /// Adds a row for an asynchronous operation. Each setup creates the operation on its own runtime.
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
        let one: Measure = Box::new(move |length| {
            let stop = now() + length;
            Ok(single.block_on(call_until(&mut op, || now() >= stop)))
        });
        let op = self.two_workers.block_on(async { make() });
        let (two_workers, blocking) = (Arc::clone(&self.two_workers), op.clone());
        let two: Measure = Box::new(move |length| {
            Ok(on_two_threads(length, |stopped| {
                let mut op = blocking.clone();
                two_workers.block_on(call_until(&mut op, stopped))
            }))
        });
        let two_workers = Arc::clone(&self.two_workers);
        let eight: Measure = Box::new(move |length| eight_async_tasks(&two_workers, &op, length));
        self.rows.push(Row { name, base, setups: [Some(one), Some(two), Some(eight)] });
        Ok(())
    }

    /// Measures the nanoseconds per call on each thread, and the ratio to the row's base.
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

/// Returns the nanoseconds per call and the ratio to the base, for each row in each setup.
pub(crate) fn compare<const SETUPS: usize>(
    rows: &mut [Row<SETUPS>],
    expected: bool,
    settings: Settings,
) -> Result<Vec<Vec<Option<f64>>>, BoxError> {
    let mut samples = vec![[const { Vec::new() }; SETUPS]; rows.len()];
    for round in 0..=settings.rounds {
        progress(format_args!("limiters: round {round} of {}", settings.rounds));
        for (row, samples) in rows.iter_mut().zip(&mut samples) {
            for (setup, samples) in row.setups.iter_mut().zip(samples) {
                let Some(measure) = setup else { continue };
                let sample = measure(settings.sample)?;
                let Sample { calls, granted, .. } = sample;
                if granted != if expected { calls } else { 0 } {
                    return Err(format!("{}: {granted} of {calls} calls were granted", row.name).into());
                }
                // The first round only warms up and is not measured.
                if round > 0 && calls > 0 {
                    samples.push(sample.nanos / calls as f64);
                }
            }
        }
    }
    let figures = |(row, own): (&Row<SETUPS>, &[Vec<f64>; SETUPS])| {
        let base = rows.iter().position(|other| other.name == row.base);
        let figures = own.iter().enumerate().flat_map(|(setup, own)| {
            let base = base.map_or(&[][..], |base| &samples[base][setup]);
            let ratios: Vec<_> = own.iter().zip(base).map(|(own, base)| own / base).collect();
            [(!own.is_empty()).then(|| median(own.clone())), (!ratios.is_empty()).then(|| median(ratios))]
        });
        figures.collect()
    };
    Ok(rows.iter().zip(&samples).map(figures).collect())
}

/// Returns the allocations per call, measured after a warm-up that fills buffers.
fn allocations(mut calls: impl FnMut(u64)) -> f64 {
    calls(2_000);
    allocation_counter::measure(|| calls(1_000)).count_total as f64 / 1e3
}

pub(crate) fn on_one_thread(mut op: impl FnMut() -> bool + 'static) -> Measure {
    Box::new(move |length| Ok(one_thread(&mut op, length)))
}

fn one_thread(op: &mut impl FnMut() -> bool, length: Duration) -> Sample {
    let (start, mut sample) = (now(), Sample::default());
    loop {
        for _ in 0..BATCH {
            sample.granted += u64::from(black_box(op()));
        }
        sample.calls += BATCH;
        let elapsed = start.elapsed();
        if elapsed >= length {
            sample.nanos = elapsed.as_nanos() as f64;
            return sample;
        }
    }
}

fn two_threads(op: &(impl FnMut() -> bool + Clone + Sync), length: Duration) -> Sample {
    on_two_threads(length, |stopped| {
        let (mut op, start, mut sample) = (op.clone(), now(), Sample::default());
        while !stopped() {
            for _ in 0..BATCH {
                sample.granted += u64::from(black_box(op()));
            }
            sample.calls += BATCH;
        }
        Sample { nanos: start.elapsed().as_nanos() as f64, ..sample }
    })
}

/// Runs `work` on two threads that start together and stop after `length`.
fn on_two_threads(length: Duration, work: impl Fn(&dyn Fn() -> bool) -> Sample + Sync) -> Sample {
    let (stop, start) = (AtomicBool::new(false), Barrier::new(2));
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| {
            scope.spawn(|| {
                start.wait();
                work(&|| stop.load(Ordering::Relaxed))
            })
        });
        thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        let samples = threads.into_iter().map(|thread| thread.join().unwrap_or_default());
        samples.fold(Sample::default(), Sample::plus)
    })
}

fn eight_tasks<O>(two_workers: &Runtime, op: &O, length: Duration) -> Result<Sample, BoxError>
where
    O: FnMut() -> bool + Clone + Send + 'static,
{
    spawn_eight(two_workers, length, |stop| {
        let mut op = op.clone();
        async move {
            let mut sample = Sample::default();
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..BATCH {
                    sample.granted += u64::from(black_box(op()));
                }
                sample.calls += BATCH;
                tokio::task::yield_now().await;
            }
            sample
        }
    })
}

fn eight_async_tasks<O, F>(two_workers: &Runtime, op: &O, length: Duration) -> Result<Sample, BoxError>
where
    O: FnMut() -> F + Clone + Send + 'static,
    F: Future<Output = bool> + Send,
{
    spawn_eight(two_workers, length, |stop| {
        let mut op = op.clone();
        async move { call_until(&mut op, move || stop.load(Ordering::Relaxed)).await }
    })
}

fn spawn_eight<F>(
    two_workers: &Runtime,
    length: Duration,
    task: impl Fn(Arc<AtomicBool>) -> F,
) -> Result<Sample, BoxError>
where
    F: Future<Output = Sample> + Send + 'static,
{
    let (start, stop) = (now(), Arc::new(AtomicBool::new(false)));
    let tasks = [(); 8].map(|()| two_workers.spawn(task(Arc::clone(&stop))));
    thread::sleep(length);
    stop.store(true, Ordering::Relaxed);
    let mut sample = Sample::default();
    for task in tasks {
        sample = sample.plus(two_workers.block_on(task)?);
    }
    // The sample is the sum of the times of the two workers, not of the eight tasks.
    Ok(Sample { nanos: 2.0 * start.elapsed().as_nanos() as f64, ..sample })
}

async fn call_until<F: Future<Output = bool>>(
    op: &mut impl FnMut() -> F,
    stopped: impl Fn() -> bool,
) -> Sample {
    let (start, mut sample) = (now(), Sample::default());
    while !stopped() {
        sample.granted += u64::from(op().await);
        sample.calls += 1;
    }
    Sample { nanos: start.elapsed().as_nanos() as f64, ..sample }
}
