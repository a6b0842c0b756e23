//! Measures the memory of idle limiters and of 100,000 queued calls, and the time to enqueue, serve and cancel the
//! calls.
//!
//! `cargo bench -p tower-outbound-peers --bench memory` prints a table for each section. Arguments after `--`:
//!
//! - `--quick` queues only 2,000 calls, to check that the bench works.
//! - `--only SECTION` runs one of `idle`, `waiting`, `served`.
//! - `--json PATH`, `--svg PATH` and `--markdown PATH` also write the figures, a plot and the tables. See README.md.
//!
//! The figures are the allocated bytes that were not freed, including unused capacity. They are exact and the same in
//! every run. Everything runs on one thread.

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    ApiKey, Quota,
    limit::{Amounts, Keyed, Limiter, LocalLimiter, PermitRequest, Unit},
    stack::StackBuilder,
};
use tower_outbound_peers::{
    Arguments, BoxError, Column, OkService, QueuedMemory, Report, Table, for_each_waiting_limiter, get,
    governor_quota, idle_memory, leaky, median, poll_once, progress, queued_memory, ratelimit, resilience,
    runtime, serve_waiters,
};

const MINUTE: Duration = Duration::from_secs(60);

/// The name of the row that measures only a task. Every other row includes the memory of this task.
const EMPTY_TASK: &str = "a task that does nothing";

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
        Column::new("handle", "bytes", 0),
        Column::new("heap", "bytes", 0).plotted(),
        Column::new("heap allocations", "", 0),
    ];
    let mut table = Table::new("idle", "An idle limiter or client, 100 per 60 s", columns);
    let mut row = |name, figures: Result<[f64; 3], BoxError>| {
        table.row(name, figures?.map(Some).to_vec());
        Ok::<_, BoxError>(())
    };
    row("tower-outbound token bucket", idle_memory(|| Ok(LocalLimiter::token_bucket(quota))))?;
    row(
        "tower-outbound token bucket of two quotas",
        idle_memory(|| Ok(LocalLimiter::token_bucket([quota, quota]))),
    )?;
    row("tower-outbound sliding window", idle_memory(|| Ok(LocalLimiter::sliding_window(quota))))?;
    let spent = || {
        let limiter = LocalLimiter::sliding_window(quota);
        while limiter.try_acquire().is_ok() {}
        Ok(limiter)
    };
    row("tower-outbound sliding window, quota spent", idle_memory(spent))?;
    let tokens = Quota::new(30_000, MINUTE)?.with_unit(Unit::Tokens)?.without_margin();
    // The first grant allocates most of a limiter.
    let request = PermitRequest::new().with_amounts(Amounts::of(Unit::Tokens, 10));
    let used = |limiter: LocalLimiter, grants: u32| {
        let mut granted = (0..grants).map(|_| poll_once(limiter.acquire_with(&request)));
        let is_granted = granted.all(|granted| matches!(granted, Some(Ok(_))));
        is_granted.then_some(limiter).ok_or_else(|| "a quota that is not spent refused a permit".into())
    };
    row("tower-outbound paced window, 1 grant", idle_memory(|| used(LocalLimiter::paced_window(quota), 1)))?;
    let both = || used(LocalLimiter::paced_window([quota, tokens]), 1);
    row("tower-outbound paced window of requests and tokens, 1 grant", idle_memory(both))?;
    // The window is so short that the grants fill each of its parts, and the log has its maximum length.
    let logged =
        Quota::new(1_000_000_000, Duration::from_millis(2))?.with_unit(Unit::Tokens)?.without_margin();
    let after_grants = || used(LocalLimiter::sliding_window(logged), 100_000);
    row("tower-outbound sliding window of tokens, 100,000 grants", idle_memory(after_grants))?;
    let in_flight = || used(LocalLimiter::paced_window(quota).with_max_in_flight(64)?, 1);
    row("tower-outbound paced window, 64 in flight, 1 grant", idle_memory(in_flight))?;
    let keyed = || Ok(Keyed::new(|_| 0, move |_: &u64| LocalLimiter::token_bucket(quota)));
    row("tower-outbound Keyed without keys", idle_memory(keyed))?;
    row("tower-outbound layer of a preset", idle_memory(|| Ok(preset(quota, 1)?.layer()?)))?;
    row("tower-outbound client, TLS roots included", idle_memory(|| Ok(preset(quota, 1)?.client()?)))?;

    let interval = MINUTE / 100;
    row(
        "governor",
        idle_memory(|| Ok(Arc::new(governor::RateLimiter::direct(governor_quota(interval, 100)?)))),
    )?;
    row("leaky-bucket", idle_memory(|| Ok(leaky(100, MINUTE, Some(100)))))?;
    row("ratelimit", idle_memory(|| ratelimit(100, MINUTE)))?;
    row("tower-resilience token bucket", idle_memory(|| resilience(100, MINUTE, MINUTE, Ok(0))))?;
    row("tokio Semaphore", idle_memory(|| Ok(Arc::new(Semaphore::new(100)))))?;
    Ok(table)
}

/// Calls `$run!(name, make)` for a stack and a client of this crate. `for_each_waiting_limiter!` does the same for
/// limiters.
macro_rules! for_each_stack {
    ($quota:expr, $queue:expr, $run:ident) => {{
        // Each row needs its own preset, because clones of a preset share the limiter.
        let (quota, queue) = ($quota, $queue);
        $run!("tower-outbound full preset stack", || {
            let (stack, request) = (preset(quota, queue)?.layer()?.layer(OkService), get()?);
            Ok(move || stack.clone().oneshot(request.clone()).map(|response| response.is_ok()))
        });
        $run!("tower-outbound client", || {
            let client = preset(quota, queue)?.client_with_service(OkService)?;
            Ok(move || client.get("/v1/resources").send().map(|response| response.is_ok()))
        });
    }};
}

fn waiting(tasks: usize, repetitions: usize) -> Result<Table, BoxError> {
    let columns = [
        Column::new("memory", "bytes per call", 0).plotted(),
        Column::new("heap allocations", "per call", 2),
        Column::new("total", "MiB", 1),
        Column::new("enqueue", "ns per call", 0),
        Column::new("cancel", "ns per call", 0),
        Column::new("remaining after cancellation", "bytes per call", 1),
    ];
    let title = format!("{tasks} queued tasks, none of them served, on 1 thread");
    let mut table = Table::new("waiting", &title, columns);
    macro_rules! run {
        ($name:expr, $burst:expr, $make:expr) => {{
            progress(format_args!("{title}: {}", $name));
            let runs = (0..repetitions).map(|_| queued_memory(tasks, $burst, $make));
            let runs = runs.collect::<Result<Vec<_>, _>>().map_err(|error| format!("{}: {error}", $name))?;
            let of = |figure: fn(&QueuedMemory) -> f64| Some(median(runs.iter().map(figure).collect()));
            let mebibytes = of(|run| run.bytes).map(|bytes| bytes * tasks as f64 / f64::from(1 << 20));
            let (bytes, blocks) = (of(|run| run.bytes), of(|run| run.blocks));
            let (enqueue, cancel) = (of(|run| run.enqueue), of(|run| run.cancel));
            table.row($name, vec![bytes, blocks, mebibytes, enqueue, cancel, of(|run| run.remaining)]);
        }};
        ($name:expr, $make:expr) => {
            run!($name, 1, $make)
        };
    }
    run!(EMPTY_TASK, 0, || Ok(pending::<bool>));
    // The limiters refill one permit per 100 s, so that no waiting task gets a permit during the run.
    let per = Duration::from_secs(100);
    for_each_waiting_limiter!(1, per, 1, run);
    let quota = Quota::new(2, per)?.with_burst(1)?.without_margin();
    let request = PermitRequest::new().with_max_queue(tasks);
    let of_tokens = Quota::new(20, per)?.with_burst(10)?.with_unit(Unit::Tokens)?.without_margin();
    run!("tower-outbound token bucket of requests and tokens", || {
        let limiter = LocalLimiter::token_bucket([quota, of_tokens]);
        let request = request.with_amounts(Amounts::of(Unit::Tokens, 10));
        Ok(move || limiter.acquire_with(&request).map(|granted| granted.is_ok()))
    });
    run!("tower-outbound 1 in flight", 0, || {
        let limiter = LocalLimiter::without_quota().with_max_in_flight(1)?;
        let held = limiter.try_acquire_owned()?;
        Ok(move || {
            // The closure owns the permit, so the request stays in flight.
            let _ = &held;
            limiter.acquire_with(&request).map(|granted| granted.is_ok())
        })
    });
    for_each_stack!(quota, tasks, run);
    run!("tokio Semaphore", 0, || {
        let none = Arc::new(Semaphore::new(0));
        Ok(move || Arc::clone(&none).acquire_owned().map(|permit| permit.is_ok()))
    });
    table.note(
        "A separate thread frees governor's timers. The bench does not count what that thread frees."
            .to_owned(),
    );
    Ok(table)
}

fn served(tasks: usize) -> Result<Table, BoxError> {
    const RATE: u32 = 20_000;
    const BURST: u32 = 1_000;
    let second = Duration::from_secs(1);
    let columns = [
        Column::new("first to last grant", "ms", 0),
        Column::new("rate achieved", "%", 1),
        Column::new("CPU", "ms", 1).plotted(),
        Column::new("median displacement", "positions", 0),
        Column::new("worst displacement", "positions", 0).plotted(),
        Column::new("wake-ups per grant", "", 2),
    ];
    let title = format!("{tasks} queued tasks, served at {RATE} permits/s, burst {BURST}, on 1 thread");
    let mut table = Table::new("served", &title, columns);
    let ideal = second * (tasks as u32 - BURST) / RATE;
    macro_rules! run {
        ($name:expr, $make:expr) => {{
            progress(format_args!("{title}: {}", $name));
            match serve_waiters(1, tasks, 64, $make) {
                Ok(run) => {
                    let took = run.took.as_secs_f64();
                    let achieved = 100.0 * ideal.as_secs_f64() / took;
                    let (median, worst) = run.displacement;
                    let order = [Some(median), Some(worst), Some(run.wakeups)];
                    let figures = [Some(took * 1e3), Some(achieved), run.cpu].into_iter().chain(order);
                    table.row($name, figures.collect());
                }
                Err(error) => {
                    table.row($name, vec![None; 6]);
                    table.note(format!("{}: {error}.", $name));
                }
            }
        }};
    }
    for_each_waiting_limiter!(RATE, second, BURST, run);
    for_each_stack!(Quota::new(RATE + BURST, second)?.with_burst(BURST)?.without_margin(), tasks, run);
    Ok(table)
}

fn main() -> Result<(), BoxError> {
    let arguments = Arguments::parse(&["idle", "waiting", "served"])?;
    let mut report = Report::new("memory", "allocated bytes, one thread");
    let tasks = arguments.pick(100_000, 2_000);
    if arguments.wants("idle") {
        // The runtime is entered, because some limiters create timers.
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
