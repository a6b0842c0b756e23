use std::{fmt::Write, time::Duration};

use crate::{
    arguments::{Arguments, Strategy},
    load::{Grant, Run},
};

/// Returns the text of the report, and whether no window exceeded the quota.
pub(crate) fn create(arguments: &Arguments, run: &Run) -> (String, bool) {
    let mut text = String::new();
    let mut row = |title: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{title:<14}{value}");
    };
    let granted = run.grants.len();
    let took = if run.cut_short { run.took } else { arguments.duration };
    let allowed = allowed(arguments, took);
    let percent = granted as f64 * 100.0 / allowed as f64;
    let rate = granted as f64 / took.as_secs_f64();
    row(
        "throughput",
        format!("{percent:.2} %: {granted} of {allowed} permits in {took:.3?}, {rate:.1} per second"),
    );

    let mut waits: Vec<_> =
        run.grants.iter().map(|grant| grant.time.granted - grant.time.requested).collect();
    waits.sort_unstable();
    let [p50, p99, max] = [50, 99, 100].map(|percent| percentile(&waits, percent));
    row("waits", format!("p50 {p50:.1?}, p99 {p99:.1?}, max {max:.1?}"));

    row(
        "order",
        match displacement(&run.grants, |grant| grant.time.earliest) {
            0 => "every permit was granted in FIFO order".to_owned(),
            worst => format!("a grant was up to {worst} positions away from FIFO order"),
        },
    );
    // Several tasks may get their permits at the same time. The scheduler determines the order in which these tasks
    // continue.
    match displacement(&run.grants, |grant| grant.grant_index) {
        0 => {}
        worst => row("", format!("a task continued up to {worst} positions away from FIFO order")),
    }

    if let Some(cpu) = run.cpu.filter(|_| granted > 0) {
        let micros = cpu.as_secs_f64() * 1e6 / granted as f64;
        row("cpu", format!("{micros:.2} µs per grant, including the tasks and this measurement"));
    }

    let (limit, window) = (arguments.quota.limit() as usize, arguments.quota.window());
    let fullest = fullest_window(&run.grants, window);
    let verdict = if fullest <= limit { "within the quota" } else { "QUOTA EXCEEDED" };
    row("worst window", format!("{fullest} grants in {window:?}, limit {limit}: {verdict}"));

    for note in notes(arguments, run, percent) {
        let _ = write!(text, "\n{note}\n");
    }
    (text, fullest <= limit)
}

/// Returns the most permits that a limiter can grant from its start until `length` has passed, both ends included.
fn allowed(arguments: &Arguments, length: Duration) -> u64 {
    let quota = &arguments.quota;
    let fit = |interval: Duration| (length.as_nanos() / interval.as_nanos()) as u64;
    match arguments.strategy {
        Strategy::Token => u64::from(quota.burst()) + fit(quota.refill_interval()),
        // Both ends belong to a closed window, so the next window begins one nanosecond after the end.
        Strategy::Window => {
            let window = quota.window() + quota.margin() + Duration::from_nanos(1);
            u64::from(quota.limit()) * (1 + fit(window))
        }
    }
}

fn percentile(sorted: &[u64], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    Duration::from_nanos(sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default())
}

/// Returns the largest distance between a grant's position in the order of requests and its position in the order of
/// `served`.
fn displacement(grants: &[Grant], served: impl Fn(&Grant) -> u64) -> usize {
    // Requests that got no permit before the end of the run are ignored.
    let mut order: Vec<_> = grants.iter().map(|grant| (grant.request_index, served(grant), 0)).collect();
    order.sort_unstable();
    for (index, (_, _, position)) in order.iter_mut().enumerate() {
        *position = index;
    }
    order.sort_unstable_by_key(|(request_index, served, _)| (*served, *request_index));
    order.iter().enumerate().map(|(index, (_, _, position))| index.abs_diff(*position)).max().unwrap_or(0)
}

/// Returns the largest number of grants that certainly happened within one window, both ends included.
///
/// A grant is certainly in a window if its earliest possible time and its latest possible time are both in the window.
fn fullest_window(grants: &[Grant], window: Duration) -> usize {
    let window = window.as_nanos() as u64;
    // A grant whose earliest and latest possible times are further apart than the window is ignored. Any other grant
    // that begins before a window also ends by the window's end. The count is therefore the grants that end by the
    // window's end, minus those that begin before the window.
    let certain = grants.iter().filter(|grant| grant.time.granted - grant.time.earliest <= window);
    let (mut begins, mut ends): (Vec<_>, Vec<_>) =
        certain.map(|grant| (grant.time.earliest, grant.time.granted)).unzip();
    begins.sort_unstable();
    ends.sort_unstable();
    let mut ended = 0;
    let counts = begins.iter().enumerate().map(|(begun_before, start)| {
        while ends.get(ended).is_some_and(|end| *end <= start + window) {
            ended += 1;
        }
        ended - begun_before
    });
    counts.max().unwrap_or(0)
}

fn notes(arguments: &Arguments, run: &Run, percent: f64) -> Vec<String> {
    let Arguments { quota, strategy, duration, .. } = arguments;
    let mut notes = Vec::new();
    if run.cut_short && run.interrupted.is_none() {
        notes.push(
            "The run ended early, because it reached the largest number of grants that this program stores."
                .to_owned(),
        );
    }
    if quota.window() > *duration && !run.cut_short {
        notes.push(format!(
            "The run was shorter than the window. --seconds {} covers a whole window.",
            quota.window().as_secs() + 1
        ));
    }
    // The number of permits that are refilled in 2 ms (two ticks of tokio's timer), plus one permit for the first
    // waiter.
    let enough = 2_000_000_u128.div_ceil(quota.refill_interval().as_nanos().max(1)) + 1;
    if *strategy == Strategy::Token && u128::from(quota.burst()) < enough && percent < 99.0 {
        notes.push(format!(
            "Timers tick in milliseconds, and the burst is smaller than the refill of two ticks.\n\
             --burst {enough} or more allows the full rate."
        ));
    }
    if cfg!(debug_assertions) && percent < 99.0 && notes.is_empty() {
        notes.push("This build is not optimised. Use `cargo run --release`.".to_owned());
    }
    notes
}
