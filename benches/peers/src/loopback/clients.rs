//! Measures HTTP clients. Each round measures the clients one after another, and each client uses all of its tasks.

use std::{
    fmt,
    future::Future,
    time::{Duration, Instant},
};

use tokio::{
    runtime::Runtime,
    sync::{mpsc, oneshot},
};

use crate::{
    BoxError, Column, Settings, Table, at_info, median, now, progress, runtime, waiters::cpu_millis,
};

/// A client under measurement. Each task calls its own instance of the client in a loop.
pub trait BenchClient: Send + 'static {
    /// Sends a request and reads the response to its end. Returns an error if the response is not the expected one.
    fn call(&mut self) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// The duration of each call in microseconds.
type Latencies = Result<Vec<f64>, BoxError>;

/// Tells a task to send requests until `stop`, and to return the latencies through `done`.
struct Assignment {
    stop: Instant,
    done: oneshot::Sender<Latencies>,
}

struct Row {
    name: &'static str,
    at_info: bool,
    /// The channels to the tasks of the row. The tasks keep their connections between two samples.
    tasks: Vec<mpsc::UnboundedSender<Assignment>>,
    samples: Vec<Sample>,
}

/// The figures of one client in one round.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// The number of requests per second.
    rate: f64,
    p50: f64,
    p99: f64,
    /// The CPU time of the client's process in microseconds per call.
    cpu: Option<f64>,
}

/// Compares HTTP clients on the same worker threads. Every client has the same number of requests in flight.
pub struct ClientComparison {
    runtime: Runtime,
    in_flight: usize,
    rows: Vec<Row>,
}

impl fmt::Debug for ClientComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientComparison")
            .field("in_flight", &self.in_flight)
            .field("rows", &self.rows.len())
            .finish_non_exhaustive()
    }
}

impl ClientComparison {
    /// Creates a comparison without rows.
    pub fn new(in_flight: usize, threads: usize) -> Result<Self, BoxError> {
        Ok(Self { runtime: runtime(threads)?, in_flight, rows: Vec::new() })
    }

    /// Adds a row for a client. `make` creates the client of each task, on the runtime of the comparison.
    pub fn row<C: BenchClient>(
        &mut self,
        name: &'static str,
        mut make: impl AsyncFnMut() -> Result<C, BoxError>,
    ) -> Result<(), BoxError> {
        let tasks = self.runtime.block_on(async {
            let mut tasks = Vec::with_capacity(self.in_flight);
            for _ in 0..self.in_flight {
                let (sender, receiver) = mpsc::unbounded_channel();
                tokio::spawn(run_task(make().await?, receiver));
                tasks.push(sender);
            }
            Ok::<_, BoxError>(tasks)
        })?;
        self.rows.push(Row { name, at_info: false, tasks, samples: Vec::new() });
        Ok(())
    }

    /// Adds a row that repeats the previous row with a tracing subscriber. The subscriber formats and discards all
    /// events from INFO on.
    pub fn repeat_at_info(&mut self, name: &'static str) {
        if let Some(row) = self.rows.last() {
            let tasks = row.tasks.clone();
            self.rows.push(Row { name, at_info: true, tasks, samples: Vec::new() });
        }
    }

    /// Measures the rows. The table shows the medians of the samples, and the median ratios to the row named `base`.
    pub fn run(
        mut self,
        id: &'static str,
        title: &str,
        base: &str,
        settings: Settings,
    ) -> Result<Table, BoxError> {
        for round in 0..=settings.rounds {
            progress(format_args!("{title}: round {round} of {}", settings.rounds));
            for row in &mut self.rows {
                let measure = || row.sample(&self.runtime, settings.sample);
                let sample = if row.at_info { at_info(measure) } else { measure() };
                let sample = sample.map_err(|error| format!("{}: {error}", row.name))?;
                // The first round opens the connections and warms up. Its figures are discarded.
                if round > 0 {
                    row.samples.push(sample);
                }
            }
        }
        let columns = [
            Column::new("requests/s", "", 0),
            Column::new("× bare client", "", 3).plotted(),
            Column::new("p50", "µs", 0),
            Column::new("p99", "µs", 0).plotted(),
            Column::new("client CPU per request", "µs", 2).plotted(),
            Column::new("× bare client", "", 3),
        ];
        let mut table = Table::new(id, title, columns);
        let base = self.rows.iter().find(|row| row.name == base).map(|row| row.samples.as_slice());
        for row in &self.rows {
            let of = |figure: fn(&Sample) -> Option<f64>| {
                row.samples.iter().map(figure).collect::<Option<Vec<_>>>().map(median)
            };
            let ratio = |figure: fn(&Sample) -> Option<f64>| {
                let pairs = row.samples.iter().zip(base.unwrap_or_default());
                let ratios = pairs.map(|(own, base)| Some(figure(own)? / figure(base)?));
                ratios.collect::<Option<Vec<_>>>().filter(|ratios| !ratios.is_empty()).map(median)
            };
            let rate = |sample: &Sample| Some(sample.rate);
            let (p50, p99) = (of(|sample| Some(sample.p50)), of(|sample| Some(sample.p99)));
            let cpu = |sample: &Sample| sample.cpu;
            table.row(row.name, vec![of(rate), ratio(rate), p50, p99, of(cpu), ratio(cpu)]);
        }
        Ok(table)
    }
}

impl Row {
    fn sample(&self, runtime: &Runtime, length: Duration) -> Result<Sample, BoxError> {
        runtime.block_on(async {
            let (cpu, start) = (cpu_millis(), now());
            let stop = start + length;
            let mut results = Vec::with_capacity(self.tasks.len());
            for task in &self.tasks {
                let (done, result) = oneshot::channel();
                task.send(Assignment { stop, done }).map_err(|_| "a task of the client has ended early")?;
                results.push(result);
            }
            let mut latencies = Vec::new();
            for result in results {
                latencies.extend(result.await??);
            }
            let took = start.elapsed();
            let cpu = cpu.zip(cpu_millis()).map(|(before, after)| (after - before) * 1e3);
            latencies.sort_by(f64::total_cmp);
            let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied();
            let (p50, p99) = at(0.50).zip(at(0.99)).ok_or("no request completed during the sample")?;
            let calls = latencies.len() as f64;
            Ok(Sample { rate: calls / took.as_secs_f64(), p50, p99, cpu: cpu.map(|cpu| cpu / calls) })
        })
    }
}

async fn run_task(mut client: impl BenchClient, mut assignments: mpsc::UnboundedReceiver<Assignment>) {
    while let Some(assignment) = assignments.recv().await {
        _ = assignment.done.send(call_until(&mut client, assignment.stop).await);
    }
}

async fn call_until(client: &mut impl BenchClient, stop: Instant) -> Latencies {
    let (mut latencies, mut before) = (Vec::with_capacity(1_024), now());
    // A task makes at least one call, even if a busy machine has used up the time of the sample.
    loop {
        client.call().await?;
        let after = now();
        latencies.push((after - before).as_nanos() as f64 / 1e3);
        if after >= stop {
            return Ok(latencies);
        }
        before = after;
    }
}
