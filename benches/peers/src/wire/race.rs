//! Clients that take turns: in each round every one sends for a moment, all its tasks at once.

use std::{
    fmt,
    future::Future,
    time::{Duration, Instant},
};

use tokio::{
    runtime::Runtime,
    sync::{mpsc, oneshot},
};

use crate::{BoxError, Column, Settings, Table, at_info, crowd::cpu_millis, median, now, runtime};

/// What a task of a client does again and again: a request, and its answer to the last byte.
pub trait Caller: Send + 'static {
    /// Fails unless the answer is the server's.
    fn call(&mut self) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// Microseconds of each call.
type Latencies = Result<Vec<f64>, BoxError>;

struct Order {
    stop: Instant,
    done: oneshot::Sender<Latencies>,
}

struct Row {
    name: &'static str,
    at_info: bool,
    /// To each of its tasks, which live as long as the race and keep their connections.
    orders: Vec<mpsc::UnboundedSender<Order>>,
    turns: Vec<Turn>,
}

/// What was done in a turn.
#[derive(Debug, Clone, Copy)]
struct Turn {
    rate: f64,
    p50: f64,
    p99: f64,
    /// Microseconds a call, of this process: the client's.
    cpu: Option<f64>,
}

/// Clients on one thread, so many requests of each in flight.
pub struct Race {
    runtime: Runtime,
    in_flight: usize,
    rows: Vec<Row>,
}

impl fmt::Debug for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Race").field("in_flight", &self.in_flight).field("rows", &self.rows.len()).finish()
    }
}

impl Race {
    /// With no rows yet.
    pub fn new(in_flight: usize) -> Result<Self, BoxError> {
        Ok(Self { runtime: runtime(1)?, in_flight, rows: Vec::new() })
    }

    /// Of what `caller` makes, on the race's runtime, for each task.
    pub fn row<C: Caller>(
        &mut self,
        name: &'static str,
        mut caller: impl AsyncFnMut() -> Result<C, BoxError>,
    ) -> Result<(), BoxError> {
        let orders = self.runtime.block_on(async {
            let mut orders = Vec::with_capacity(self.in_flight);
            for _ in 0..self.in_flight {
                let (sender, receiver) = mpsc::unbounded_channel();
                tokio::spawn(obey(caller().await?, receiver));
                orders.push(sender);
            }
            Ok::<_, BoxError>(orders)
        })?;
        self.rows.push(Row { name, at_info: false, orders, turns: Vec::new() });
        Ok(())
    }

    /// The row before once more, with every line from INFO on written to nowhere.
    pub fn again_at_info(&mut self, name: &'static str) {
        if let Some(row) = self.rows.last() {
            let orders = row.orders.clone();
            self.rows.push(Row { name, at_info: true, orders, turns: Vec::new() });
        }
    }

    /// Medians of the turns; the ratios are to the row of the name `base`, each the median of the rounds' own.
    pub fn run(
        mut self,
        id: &'static str,
        title: &str,
        base: &str,
        settings: Settings,
    ) -> Result<Table, BoxError> {
        for round in 0..=settings.rounds {
            for row in &mut self.rows {
                let turn = || row.turn(&self.runtime, settings.turn);
                let turn = if row.at_info { at_info(turn) } else { turn() };
                let turn = turn.map_err(|error| format!("{}: {error}", row.name))?;
                // The first round connects and warms up.
                if round > 0 {
                    row.turns.push(turn);
                }
            }
        }
        let columns = [
            Column::new("requests/s", "", 0),
            Column::new("× bare", "", 3).plotted(),
            Column::new("p50", "µs", 0),
            Column::new("p99", "µs", 0).plotted(),
            Column::new("client's CPU a request", "µs", 2).plotted(),
            Column::new("× bare", "", 3),
        ];
        let mut table = Table::new(id, title, columns);
        let base = self.rows.iter().find(|row| row.name == base).map(|row| row.turns.as_slice());
        for row in &self.rows {
            let of = |figure: fn(&Turn) -> Option<f64>| {
                row.turns.iter().map(figure).collect::<Option<Vec<_>>>().map(median)
            };
            let ratio = |figure: fn(&Turn) -> Option<f64>| {
                let pairs = row.turns.iter().zip(base.unwrap_or_default());
                let ratios = pairs.map(|(own, base)| Some(figure(own)? / figure(base)?));
                ratios.collect::<Option<Vec<_>>>().filter(|ratios| !ratios.is_empty()).map(median)
            };
            let rate = |turn: &Turn| Some(turn.rate);
            let (p50, p99) = (of(|turn| Some(turn.p50)), of(|turn| Some(turn.p99)));
            let cpu = |turn: &Turn| turn.cpu;
            table.row(row.name, vec![of(rate), ratio(rate), p50, p99, of(cpu), ratio(cpu)]);
        }
        Ok(table)
    }
}

impl Row {
    fn turn(&self, runtime: &Runtime, length: Duration) -> Result<Turn, BoxError> {
        runtime.block_on(async {
            let (cpu, start) = (cpu_millis(), now());
            let stop = start + length;
            let mut answers = Vec::with_capacity(self.orders.len());
            for order in &self.orders {
                let (done, answer) = oneshot::channel();
                order.send(Order { stop, done }).map_err(|_| "a task is gone")?;
                answers.push(answer);
            }
            let mut latencies = Vec::new();
            for answer in answers {
                latencies.extend(answer.await??);
            }
            let took = start.elapsed();
            let cpu = cpu.zip(cpu_millis()).map(|(before, after)| (after - before) * 1e3);
            latencies.sort_by(f64::total_cmp);
            let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied();
            let (p50, p99) = at(0.50).zip(at(0.99)).ok_or("nothing was answered in time")?;
            let calls = latencies.len() as f64;
            Ok(Turn { rate: calls / took.as_secs_f64(), p50, p99, cpu: cpu.map(|cpu| cpu / calls) })
        })
    }
}

async fn obey(mut caller: impl Caller, mut orders: mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = orders.recv().await {
        _ = order.done.send(until(&mut caller, order.stop).await);
    }
}

async fn until(caller: &mut impl Caller, stop: Instant) -> Latencies {
    let (mut latencies, mut before) = (Vec::with_capacity(1_024), now());
    // Once at least, however short the turn is on a machine that is busy.
    loop {
        caller.call().await?;
        let after = now();
        latencies.push((after - before).as_nanos() as f64 / 1e3);
        if after >= stop {
            return Ok(latencies);
        }
        before = after;
    }
}
