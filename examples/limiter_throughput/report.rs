use std::{fmt::Write, time::Duration};

use crate::{
    arguments::{Arguments, Strategy},
    load::{Grant, Run},
};

/// The report, and whether the quota was kept.
pub(crate) fn of(arguments: &Arguments, run: &Run) -> (String, bool) {
    let mut text = String::new();
    let mut line = |title: &str, value: String| {
        // Writing into a string can't fail.
        let _ = writeln!(text, "{title:<14}{value}");
    };
    let granted = run.grants.len();
    let took = if run.cut_short { run.took } else { arguments.lasting };
    let allowed = allowed(arguments, took);
    let kept = granted as f64 * 100.0 / allowed as f64;
    let rate = granted as f64 / took.as_secs_f64();
    line(
        "rate kept",
        format!("{kept:.2} %: {granted} granted of {allowed} in {took:.3?}, {rate:.1} a second"),
    );

    let mut waits: Vec<_> = run.grants.iter().map(|grant| grant.stamp.granted - grant.stamp.asked).collect();
    waits.sort_unstable();
    let [half, most, all] = [50, 99, 100].map(|percent| percentile(&waits, percent));
    line("waits", format!("p50 {half:.1?}, p99 {most:.1?}, max {all:.1?}"));

    line(
        "order",
        match displacement(&run.grants, |grant| grant.stamp.earliest) {
            0 => "first come, first served, without exception".to_owned(),
            worst => format!("the worst was granted {worst} places before or after its turn"),
        },
    );
    // Those who are granted together go on as their tasks have their turn, among others who need not wait.
    match displacement(&run.grants, |grant| grant.granted_as) {
        0 => {}
        worst => line("", format!("the worst went on {worst} places before or after its turn")),
    }

    if let Some(cpu) = run.cpu.filter(|_| granted > 0) {
        let micros = cpu.as_secs_f64() * 1e6 / granted as f64;
        line("cpu", format!("{micros:.2} µs a grant, the tasks and this measurement counted"));
    }

    let (limit, window) = (arguments.quota.limit() as usize, arguments.quota.window());
    let fullest = fullest_window(&run.grants, window);
    let verdict = if fullest <= limit { "kept" } else { "BROKEN" };
    line("worst window", format!("{fullest} in {window:?}, of {limit}: {verdict}"));

    for note in notes(arguments, run, kept) {
        let _ = write!(text, "\n{note}\n");
    }
    (text, fullest <= limit)
}

/// The most that the strategy can grant in a closed interval of this length, from its start.
fn allowed(arguments: &Arguments, length: Duration) -> u64 {
    let quota = &arguments.quota;
    let fit = |interval: Duration| (length.as_nanos() / interval.as_nanos()) as u64;
    match arguments.strategy {
        Strategy::Token => u64::from(quota.burst()) + fit(quota.refill_interval()),
        // Both ends of a window count in it, so that the next begins a nanosecond later.
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

/// By how many places the worst off was before or after its turn, when they are lined up by `served`.
fn displacement(grants: &[Grant], served: impl Fn(&Grant) -> u64) -> usize {
    // Those who asked and were not granted before the end came after all of these, or are left out.
    let mut line: Vec<_> = grants.iter().map(|grant| (grant.asked_as, served(grant), 0)).collect();
    line.sort_unstable();
    for (turn, (_, _, place)) in line.iter_mut().enumerate() {
        *place = turn;
    }
    line.sort_unstable_by_key(|(asked_as, served, _)| (*served, *asked_as));
    line.iter().enumerate().map(|(at, (_, _, turn))| at.abs_diff(*turn)).max().unwrap_or(0)
}

/// The most grants that certainly happened within one closed window: from the moment before which each can't
/// have been given, to the one at which its task had it.
fn fullest_window(grants: &[Grant], window: Duration) -> usize {
    let window = window.as_nanos() as u64;
    // One that may have taken longer than the window is in none for certain. Of the others, those in a window
    // are those that ended by its end, less those that began before it.
    let certain = grants.iter().filter(|grant| grant.stamp.granted - grant.stamp.earliest <= window);
    let (mut begins, mut ends): (Vec<_>, Vec<_>) =
        certain.map(|grant| (grant.stamp.earliest, grant.stamp.granted)).unzip();
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

fn notes(arguments: &Arguments, run: &Run, kept: f64) -> Vec<String> {
    let Arguments { quota, strategy, lasting, .. } = arguments;
    let mut notes = Vec::new();
    if run.cut_short && run.interrupted.is_none() {
        notes.push("Ended early: no more grants than these are kept in memory.".to_owned());
    }
    if quota.window() > *lasting && !run.cut_short {
        notes.push(format!(
            "The run was shorter than the window: --seconds {} would show a whole one.",
            quota.window().as_secs() + 1
        ));
    }
    // What is refilled in two ticks of tokio's timer, a millisecond each, and the permit that is waited for.
    let enough = 2_000_000_u128.div_ceil(quota.refill_interval().as_nanos().max(1)) + 1;
    if *strategy == Strategy::Token && u128::from(quota.burst()) < enough && kept < 99.0 {
        notes.push(format!(
            "Timers tick in milliseconds, and this burst has no room for what is refilled in two of them: with\n\
             --burst {enough} or more the rate can be kept."
        ));
    }
    if cfg!(debug_assertions) && kept < 99.0 && notes.is_empty() {
        notes.push("This is a build without optimisation: try cargo run --release.".to_owned());
    }
    notes
}
