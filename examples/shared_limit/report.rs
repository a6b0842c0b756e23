use std::{collections::BTreeMap, fmt::Write, time::Duration};

use tokio::time::Instant;

use crate::{
    PROCESSES, STEP, TASKS,
    fleet::{Count, Event, Job, Said, saw},
    store::Store,
};

pub(crate) const HEAD: &str = "\nfrom second   arrivals   of each process   redis   state of the processes\n";

/// What happened when.
pub(crate) struct Run {
    pub(crate) job: Job,
    pub(crate) start: Instant,
    pub(crate) killed: Option<Instant>,
    pub(crate) restarted: Option<Instant>,
    pub(crate) end: Instant,
    /// Until it was killed.
    pub(crate) questions: Option<u64>,
}

pub(crate) fn title(job: &Job, store: &Store) -> String {
    let (quota, length) = (job.quota, Job::length(job.quota));
    let whose = if store.is_own() {
        "a redis-server of this run, which is killed in the middle and started again"
    } else {
        "which is yours, and so not stopped"
    };
    format!(
        "{PROCESSES} processes of {TASKS} tasks share one quota: {quota}.\n\
         Each asks redis at {}, {whose}.\n\
         While redis does not answer, each {}.\n\
         With the margin, and the {:?} for which a permit is held, a window is of {length:?}: of its {} permits {} are \
         refilled in it,\nwhich allows {:.1} requests a second, and {:.0} in each line below.\n",
        store.address(),
        if job.parts == 0 {
            "refuses".to_owned()
        } else {
            format!("keeps to one part in {} of it", job.parts)
        },
        Job::HOLD,
        quota.limit(),
        quota.limit() - quota.burst(),
        job.rate(),
        job.rate() * STEP.as_secs_f64(),
    )
}

/// One step of the run.
pub(crate) fn line(from: Duration, count: &Count, store: &Store, states: &[String]) -> String {
    let each: String = (0..PROCESSES).map(|process| format!("{:>4}", count.of(process))).collect();
    let mut line = format!(
        "{:>11.1} {:>10}   {each:<16}  {:<5}   {:<24}",
        from.as_secs_f64(),
        count.total(),
        if store.is_away() { "away" } else { "up" },
        tally(states),
    );
    line.push_str(&"#".repeat(count.total() / 4));
    line.truncate(line.trim_end().len());
    line.push('\n');
    line
}

/// `shared`, or `3 shared, 1 refusing`.
fn tally(states: &[String]) -> String {
    let mut tally = BTreeMap::new();
    for state in states {
        *tally.entry(state.as_str()).or_insert(0) += 1;
    }
    if let [(state, _)] = tally.iter().collect::<Vec<_>>()[..] {
        return (*state).to_owned();
    }
    tally.iter().map(|(state, count)| format!("{count} {state}")).collect::<Vec<_>>().join(", ")
}

impl Run {
    /// Redis takes a window for spent when it has just begun, so the shares are counted from here on.
    fn settled(&self) -> Instant {
        self.start + STEP * 3
    }

    pub(crate) fn summary(&self, all: &Count, events: &[Event]) -> String {
        let until = self.killed.unwrap_or(self.end);
        let mut text = String::new();
        // An interrupted run may have no share to show.
        if until > self.settled() {
            text.push_str(&self.shares(all, events, until));
        }
        if let (Some(killed), Some(restarted)) = (self.killed, self.restarted) {
            text.push_str(&self.outage(all, events, killed, restarted));
        }
        let _ = writeln!(
            text,
            "\nThe server counted {} requests, at most {} of {} in any second: {} violations",
            all.total(),
            all.fullest(),
            self.job.quota.limit(),
            all.violations()
        );
        text
    }

    fn shares(&self, all: &Count, events: &[Event], until: Instant) -> String {
        let seconds = (until - self.settled()).as_secs_f64();
        let (shared, allowed) = (all.between(self.settled(), until), self.job.rate() * seconds);
        let part = |count: usize, of: f64| count as f64 * 100.0 / of;
        let mut text = format!("\n{seconds:.1} s of the quota as it is shared, from second 1.5 on:\n");
        for process in 0..PROCESSES {
            let (count, fair) = (shared.of(process), shared.total() as f64 / PROCESSES as f64);
            let _ = writeln!(
                text,
                "  process {process} {count:>6} requests {:>6.1} % of its fair share   {}",
                part(count, fair),
                states(events, process)
            );
        }
        let _ = writeln!(
            text,
            "  in all    {:>6} requests {:>6.1} % of the {allowed:.0} that the quota allows",
            shared.total(),
            part(shared.total(), allowed)
        );
        if let Some(questions) = self.questions {
            let seconds = (until - self.start).as_secs_f64();
            let _ = writeln!(text, "  redis was asked {:.0} times a second", questions as f64 / seconds);
        }
        text
    }

    fn outage(&self, all: &Count, events: &[Event], killed: Instant, restarted: Instant) -> String {
        let without = all.between(killed, restarted);
        let mut text = format!(
            "\nRedis was away for {:.1} s, in which {} requests arrived.",
            (restarted - killed).as_secs_f64(),
            without.total()
        );
        let back = (0..PROCESSES).map(|process| {
            let shared = saw(events, process, "shared", restarted..self.end)?;
            all.arrivals().find(|arrival| arrival.process == process && arrival.at > shared)
        });
        match back.collect::<Option<Vec<_>>>().and_then(|back| back.iter().map(|arrival| arrival.at).max()) {
            Some(last) => {
                let after = (last - restarted).as_secs_f64();
                let _ = writeln!(text, " Started again, it served every process after {after:.2} s.");
            }
            None => text.push_str(" Started again, it has not served every process until the end.\n"),
        }
        text
    }
}

/// Those that a process went through.
fn states(events: &[Event], process: usize) -> String {
    let states =
        events.iter().filter(|event| event.process == process).filter_map(|event| match &event.said {
            Said::State(state) => Some(state.as_str()),
            _ => None,
        });
    states.collect::<Vec<_>>().join(" > ")
}
