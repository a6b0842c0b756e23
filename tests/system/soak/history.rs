//! Records the outcomes of calls and the violations. The memory of this record is not counted as memory of the clients.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use super::log_scanner;

#[derive(Default)]
pub(crate) struct History {
    pub(crate) calls_started: AtomicU64,
    /// The number of calls by outcome, including `cancelled`.
    pub(crate) outcomes: Mutex<BTreeMap<String, u64>>,
    /// The POST calls without an idempotency key that a server may have processed.
    processed: Mutex<BTreeSet<u64>>,
    violations: Mutex<Vec<String>>,
    /// `true` after the end of the load phase.
    pub(crate) load_ended: AtomicBool,
    /// `true` after the start of the recovery phase, in which the servers respond without faults.
    pub(crate) recovering: AtomicBool,
}

impl History {
    pub(crate) fn has_load_ended(&self) -> bool {
        self.load_ended.load(Relaxed)
    }

    pub(crate) fn is_recovering(&self) -> bool {
        self.recovering.load(Relaxed)
    }

    pub(crate) fn add_violation(&self, text: String) {
        uncounted(|| self.violations.lock().unwrap().push(text));
    }

    pub(crate) fn count_call(&self, outcome: &str) {
        uncounted(|| *self.outcomes.lock().unwrap().entry(outcome.to_owned()).or_default() += 1);
    }

    /// Adds a violation if a server may already have processed the call.
    pub(crate) fn process_once(&self, call: u64) {
        if !self.processed.lock().unwrap().insert(call) {
            self.add_violation(format!("the POST of call {call} may have been processed twice"));
        }
    }

    /// Returns all violations. Adds one unless every call ended exactly once, both in the callers' count and in the log.
    pub(crate) fn violations(&self) -> Vec<String> {
        let started = self.calls_started.load(Relaxed);
        let outcomes = self.outcomes.lock().unwrap();
        let ended: u64 = outcomes.values().sum();
        let completed = ended - outcomes.get("cancelled").copied().unwrap_or(0);
        let [opened, closed, events] =
            [&log_scanner::SPANS_OPENED, &log_scanner::SPANS_CLOSED, &log_scanner::CALL_EVENTS]
                .map(|count| count.swap(0, Relaxed));
        let mut violations = self.violations.lock().unwrap().clone();
        if [ended, opened, closed, events] != [started, started, started, completed] {
            violations.push(format!(
                "{started} calls started, {ended} ended, {completed} of them completed, but {opened} spans opened, \
                 {closed} closed, {events} events"
            ));
        }
        violations.extend(log_scanner::take_findings());
        violations
    }
}

/// Runs `work` without counting its allocations as the client's memory.
pub(crate) fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let mut output = None;
    allocation_counter::opt_out(|| output = Some(work()));
    output.unwrap()
}
