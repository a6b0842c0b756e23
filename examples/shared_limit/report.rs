use std::{collections::BTreeMap, fmt::Write, time::Duration};

use tokio::time::Instant;

use crate::{
    PROCESSES, STEP, TASKS,
    fleet::{ArrivalLog, Event, Message, WorkerConfig, first_seen},
    store::Store,
};

pub(crate) const HEADING: &str =
    "\nfrom second   arrivals   by process        redis   state of the limiters\n";

/// The times, the counts and the configuration of a run.
pub(crate) struct Run {
    pub(crate) config: WorkerConfig,
    pub(crate) start: Instant,
    pub(crate) killed: Option<Instant>,
    pub(crate) restarted: Option<Instant>,
    pub(crate) end: Instant,
    /// The number of scripts that Redis ran from the start of the run until it was killed.
    pub(crate) script_calls: Option<u64>,
}

pub(crate) fn title(config: &WorkerConfig, store: &Store) -> String {
    let (quota, window) = (config.quota, WorkerConfig::enforced_window(config.quota));
    let lifetime = if store.is_own() {
        "which this program started, and will kill and restart"
    } else {
        "which was already running and is not stopped"
    };
    format!(
        "{PROCESSES} processes of {TASKS} tasks share one quota: {quota}.\n\
         They use the redis at {}, {lifetime}.\n\
         While redis does not reply, each process {}.\n\
         Margin and hold time ({:?}) extend the window to {window:?}. {} of the {} permits are refilled in each window.\n\
         This allows {:.1} requests per second, or {:.0} in each row below.\n",
        store.address(),
        if config.fallback_share == 0 {
            "refuses every request".to_owned()
        } else {
            format!("uses 1/{} of the quota", config.fallback_share)
        },
        WorkerConfig::HOLD,
        quota.limit() - quota.burst(),
        quota.limit(),
        config.rate(),
        config.rate() * STEP.as_secs_f64(),
    )
}

/// Formats the table row of one step.
pub(crate) fn row(from: Duration, arrivals: &ArrivalLog, store: &Store, states: &[String]) -> String {
    let by_process: String =
        (0..PROCESSES).map(|process| format!("{:>4}", arrivals.count_of(process))).collect();
    let mut row = format!(
        "{:>11.1} {:>10}   {by_process:<16}  {:<5}   {:<24}",
        from.as_secs_f64(),
        arrivals.total(),
        if store.is_down() { "down" } else { "up" },
        count_states(states),
    );
    row.push_str(&"#".repeat(arrivals.total() / 4));
    row.truncate(row.trim_end().len());
    row.push('\n');
    row
}

/// Returns the number of processes in each state, such as `3 shared, 1 refusing`. If all processes are in the same
/// state, returns only that state.
fn count_states(states: &[String]) -> String {
    let mut counts = BTreeMap::new();
    for state in states {
        *counts.entry(state.as_str()).or_insert(0) += 1;
    }
    if let [(state, _)] = counts.iter().collect::<Vec<_>>()[..] {
        return (*state).to_owned();
    }
    counts.iter().map(|(state, count)| format!("{count} {state}")).collect::<Vec<_>>().join(", ")
}

impl Run {
    /// Returns the start of the measurement. The run's first window is not measured, because a fresh Redis counts the
    /// quota of that window as spent.
    fn measured_from(&self) -> Instant {
        self.start + STEP * 3
    }

    pub(crate) fn summary(&self, all: &ArrivalLog, events: &[Event]) -> String {
        let until = self.killed.unwrap_or(self.end);
        let mut text = String::new();
        // If the run was interrupted early, there is no measurement to print.
        if until > self.measured_from() {
            text.push_str(&self.shares(all, events, until));
        }
        if let (Some(killed), Some(restarted)) = (self.killed, self.restarted) {
            text.push_str(&self.outage(all, events, killed, restarted));
        }
        let _ = writeln!(
            text,
            "\nThe server counted {} requests, at most {} in any second (limit {}): {} violations",
            all.total(),
            all.most_in_window(),
            self.config.quota.limit(),
            all.violations()
        );
        text
    }

    fn shares(&self, all: &ArrivalLog, events: &[Event], until: Instant) -> String {
        let seconds = (until - self.measured_from()).as_secs_f64();
        let (shared, allowed) = (all.between(self.measured_from(), until), self.config.rate() * seconds);
        let percent = |count: usize, of: f64| count as f64 * 100.0 / of;
        let mut text = format!("\nShares of the quota, measured for {seconds:.1} s from second 1.5:\n");
        for process in 0..PROCESSES {
            let (count, fair) = (shared.count_of(process), shared.total() as f64 / PROCESSES as f64);
            let _ = writeln!(
                text,
                "  process {process} {count:>6} requests {:>6.1} % of its fair share   {}",
                percent(count, fair),
                states(events, process)
            );
        }
        let _ = writeln!(
            text,
            "  total     {:>6} requests {:>6.1} % of the {allowed:.0} that the quota allows",
            shared.total(),
            percent(shared.total(), allowed)
        );
        if let Some(calls) = self.script_calls {
            let seconds = (until - self.start).as_secs_f64();
            let _ = writeln!(text, "  redis ran {:.0} scripts per second", calls as f64 / seconds);
        }
        text
    }

    fn outage(&self, all: &ArrivalLog, events: &[Event], killed: Instant, restarted: Instant) -> String {
        let without = all.between(killed, restarted);
        let mut text = format!(
            "\nRedis was down for {:.1} s. During that time {} requests arrived.",
            (restarted - killed).as_secs_f64(),
            without.total()
        );
        let first_grants = (0..PROCESSES).map(|process| {
            let shared = first_seen(events, process, "shared", restarted..self.end)?;
            all.arrivals().find(|arrival| arrival.process == process && arrival.at > shared)
        });
        let first_grants: Option<Vec<_>> = first_grants.collect();
        match first_grants.and_then(|grants| grants.iter().map(|arrival| arrival.at).max()) {
            Some(last) => {
                let after = (last - restarted).as_secs_f64();
                let _ = writeln!(text, " Every process got a permit {after:.2} s after the restart.");
            }
            None => text.push_str(" Not every process got a permit after the restart.\n"),
        }
        text
    }
}

/// Lists the states that a process reported, in order.
fn states(events: &[Event], process: usize) -> String {
    let states =
        events.iter().filter(|event| event.process == process).filter_map(|event| match &event.message {
            Message::State(state) => Some(state.as_str()),
            _ => None,
        });
    states.collect::<Vec<_>>().join(" > ")
}
