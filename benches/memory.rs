//! What is held while nothing moves: by an idle limiter, by a call that waits, and by 100,000 that wait at once; and what
//! it costs to put them in line, to serve them, to cancel them.
//!
//! `cargo bench -p tower-outbound-peers --bench memory` prints a table for each section. After `--`:
//!
//! - `--quick` lets 2,000 wait, to see that it works;
//! - `--only SECTION` runs one of `idle`, `waiting`, `served`;
//! - `--json PATH`, `--svg PATH` and `--markdown PATH` write the figures, a plot and the tables as well, see README.md.
//!
//! Bytes are what the program asked of the allocator and has not given back, spare room included: they are exact, and
//! the same in every run. All runs on one thread.

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    ApiKey, Quota,
    limit::{Keyed, SlidingWindow, TokenBucket},
    stack::StackBuilder,
};
use tower_outbound_peers::{
    Answers, Arguments, BoxError, Column, Held, Report, Table, bucket, crowd, each_waiter, get, held, idle,
    leaky, median, ratelimit, resilience, runtime,
};

const MINUTE: Duration = Duration::from_secs(60);

/// Rows that are not there to be compared, but to be subtracted or to tell the scale.
const EMPTY: &str = "a task that does nothing";

fn preset(quota: Quota, queue: usize) -> Result<StackBuilder, BoxError> {
    Ok(StackBuilder::new("https://api.example.com")?
        .with_name("bench")
        .with_api_key(ApiKey::new("s3cret")?)
        .with_quota(quota)
        .with_limit(|limit| limit.with_max_queue(queue))
        .with_total_timeout(Duration::from_secs(365 * 86_400)))
}

fn idle_limiters() -> Result<Table, BoxError> {
    let quota = Quota::new(100, MINUTE)?.without_margin();
    let columns = [
        Column::new("in the handle", "bytes", 0),
        Column::new("on the heap", "bytes", 0).plotted(),
        Column::new("in blocks", "", 0),
    ];
    let mut table = Table::new("idle", "Idle, 100 per 60 s", columns);
    let mut row = |name, figures: Result<[f64; 3], BoxError>| {
        table.row(name, figures?.map(Some).to_vec());
        Ok::<_, BoxError>(())
    };
    row("tower-outbound TokenBucket", idle(|| Ok(TokenBucket::new(quota))))?;
    row("tower-outbound TokenBucket of two quotas", idle(|| Ok(TokenBucket::all_of([quota, quota]))))?;
    row("tower-outbound SlidingWindow", idle(|| Ok(SlidingWindow::new(quota))))?;
    let spent = || {
        let ours = SlidingWindow::new(quota);
        while ours.try_acquire().is_ok() {}
        Ok(ours)
    };
    row("tower-outbound SlidingWindow, the quota spent", idle(spent))?;
    let keyed = || Ok(Keyed::new(|_| 0, move |_: &u64| TokenBucket::new(quota)));
    row("tower-outbound Keyed, no key yet", idle(keyed))?;
    row("tower-outbound preset's layer", idle(|| Ok(preset(quota, 1)?.layer()?)))?;
    row("tower-outbound client, TLS roots included", idle(|| Ok(preset(quota, 1)?.client()?)))?;

    let interval = MINUTE / 100;
    row("governor", idle(|| Ok(Arc::new(governor::RateLimiter::direct(bucket(interval, 100)?)))))?;
    row("leaky-bucket", idle(|| Ok(leaky(100, MINUTE, Some(100)))))?;
    row("ratelimit", idle(|| ratelimit(100, MINUTE)))?;
    row("tower-resilience token bucket", idle(|| resilience(100, MINUTE, MINUTE, Ok(0))))?;
    row("tokio Semaphore", idle(|| Ok(Arc::new(Semaphore::new(100)))))?;
    Ok(table)
}

/// Calls `$run!(name, make)` with ours as stacks, as `each_waiter!` does with limiters.
macro_rules! each_stack {
    ($quota:expr, $queue:expr, $run:ident) => {{
        // Made anew for each: what is made of one preset shares its limiter.
        let (quota, queue) = ($quota, $queue);
        $run!("tower-outbound full preset stack", || {
            let (stack, request) = (preset(quota, queue)?.layer()?.layer(Answers), get()?);
            Ok(move || stack.clone().oneshot(request.clone()).map(|answer| answer.is_ok()))
        });
        $run!("tower-outbound client", || {
            let client = preset(quota, queue)?.client_with_service(Answers)?;
            Ok(move || client.get("/v1/resources").map(|answer| answer.is_ok()))
        });
    }};
}

fn waiting(tasks: usize, repetitions: usize) -> Result<Table, BoxError> {
    let columns = [
        Column::new("held", "bytes a call", 0).plotted(),
        Column::new("in blocks", "a call", 2),
        Column::new("all of them", "MiB", 1),
        Column::new("put in line", "ns a call", 0),
        Column::new("cancelled", "ns a call", 0),
        Column::new("left behind", "bytes a call", 1),
    ];
    let title = format!("{tasks} tasks waiting at once, nobody served, one thread");
    let mut table = Table::new("waiting", &title, columns);
    macro_rules! run {
        ($name:expr, $burst:expr, $make:expr) => {{
            let runs = (0..repetitions).map(|_| held(tasks, $burst, $make));
            let runs = runs.collect::<Result<Vec<_>, _>>().map_err(|error| format!("{}: {error}", $name))?;
            let of = |figure: fn(&Held) -> f64| Some(median(runs.iter().map(figure).collect()));
            let mebibytes = of(|held| held.bytes).map(|bytes| bytes * tasks as f64 / f64::from(1 << 20));
            let (bytes, blocks) = (of(|held| held.bytes), of(|held| held.blocks));
            let (queue, cancel) = (of(|held| held.queue), of(|held| held.cancel));
            table.row($name, vec![bytes, blocks, mebibytes, queue, cancel, of(|held| held.left)]);
        }};
        ($name:expr, $make:expr) => {
            run!($name, 1, $make)
        };
    }
    run!(EMPTY, 0, || Ok(pending::<bool>));
    // One at once, and one more in 100 s: the last would wait for 115 days.
    let per = Duration::from_secs(100);
    each_waiter!(1, per, 1, run);
    each_stack!(Quota::new(2, per)?.with_burst(1)?.without_margin(), tasks, run);
    run!("tokio Semaphore", 0, || {
        let none = Arc::new(Semaphore::new(0));
        Ok(move || Arc::clone(&none).acquire_owned().map(|permit| permit.is_ok()))
    });
    table.note(
        "governor's timers are freed by a thread of their own: what that gives back is not counted."
            .to_owned(),
    );
    Ok(table)
}

fn served(tasks: usize) -> Result<Table, BoxError> {
    const RATE: u32 = 20_000;
    const BURST: u32 = 1_000;
    let second = Duration::from_secs(1);
    let columns = [
        Column::new("from the first to the last", "ms", 0),
        Column::new("rate kept", "%", 1),
        Column::new("CPU", "ms", 1).plotted(),
        Column::new("displaced, median", "places", 0),
        Column::new("displaced, worst", "places", 0).plotted(),
        Column::new("wake-ups a grant", "", 2),
    ];
    let title = format!("{tasks} tasks waiting on {RATE}/s, burst {BURST}, 1 thread");
    let mut table = Table::new("served", &title, columns);
    let ideal = second * (tasks as u32 - BURST) / RATE;
    macro_rules! run {
        ($name:expr, $make:expr) => {{
            match crowd(1, tasks, 64, $make) {
                Ok(run) => {
                    let took = run.took.as_secs_f64();
                    let kept = 100.0 * ideal.as_secs_f64() / took;
                    let (median, worst) = run.displaced;
                    let order = [Some(median), Some(worst), Some(run.wakes)];
                    let figures = [Some(took * 1e3), Some(kept), run.cpu].into_iter().chain(order);
                    table.row($name, figures.collect());
                }
                Err(error) => {
                    table.row($name, vec![None; 6]);
                    table.note(format!("{}: {error}.", $name));
                }
            }
        }};
    }
    each_waiter!(RATE, second, BURST, run);
    each_stack!(Quota::new(RATE + BURST, second)?.with_burst(BURST)?.without_margin(), tasks, run);
    Ok(table)
}

fn main() -> Result<(), BoxError> {
    let arguments = Arguments::parse(&["idle", "waiting", "served"])?;
    let mut report = Report::new("memory", "bytes as asked of the allocator; one thread");
    let tasks = arguments.pick(100_000, 2_000);
    if arguments.wants("idle") {
        // Some make timers, which need to know of a runtime.
        let runtime = runtime(1)?;
        let _entered = runtime.enter();
        report.add(idle_limiters()?);
    }
    if arguments.wants("waiting") {
        report.add(waiting(tasks, arguments.pick(3, 1))?);
    }
    if arguments.wants("served") {
        report.add(served(tasks)?);
    }
    report.write(&arguments)
}
