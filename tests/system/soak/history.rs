//! Records the events at callers and servers, and checks them. The memory of this record is not counted as memory of
//! the clients.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use super::log_scanner;

/// A request that arrived at its server.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) api: usize,
    pub(crate) call: u64,
    pub(crate) method: http::Method,
    pub(crate) idempotency_key: Option<String>,
    /// `false` if the server responded with 401, 429 or `REFUSED_STREAM`, which prove that the server did not process
    /// the request.
    pub(crate) may_be_processed: bool,
}

#[derive(Default)]
pub(crate) struct History {
    pub(crate) calls_started: AtomicU64,
    /// The number of calls by outcome, including `cancelled`.
    pub(crate) call_outcomes: Mutex<BTreeMap<String, u64>>,
    /// The number of response bodies by outcome.
    pub(crate) body_outcomes: Mutex<BTreeMap<&'static str, u64>>,
    /// The number of server actions by kind.
    pub(crate) server_actions: Mutex<BTreeMap<String, u64>>,
    pub(crate) arrivals: Mutex<Vec<Arrival>>,
    /// Violations that were detected during the run.
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
        uncounted(|| *self.call_outcomes.lock().unwrap().entry(outcome.to_owned()).or_default() += 1);
    }

    pub(crate) fn count_server_action(&self, action: &str) {
        *self.server_actions.lock().unwrap().entry(action.to_owned()).or_default() += 1;
    }

    /// Returns the violations of all guarantees.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut violations = self.violations.lock().unwrap().clone();
        violations.extend(self.unaccounted_calls());
        violations.extend(self.duplicates());
        violations.extend(log_scanner::take_findings());
        violations
    }

    /// Checks that every call ended exactly once, both in the callers' count and in the log.
    fn unaccounted_calls(&self) -> Vec<String> {
        let started = self.calls_started.load(Relaxed);
        let outcomes = self.call_outcomes.lock().unwrap();
        let ended: u64 = outcomes.values().sum();
        let completed = ended - outcomes.get("cancelled").copied().unwrap_or(0);
        let log = [&log_scanner::SPANS_OPENED, &log_scanner::SPANS_CLOSED, &log_scanner::CALL_EVENTS]
            .map(|count| count.swap(0, Relaxed));
        let mut violations = vec![];
        if started != ended {
            violations.push(format!("{started} calls started, {ended} ended"));
        }
        if log != [started, started, completed] {
            let [opened, closed, events] = log;
            violations.push(format!(
                "{started} calls, {completed} of them completed, but {opened} spans opened, {closed} closed, {events} events"
            ));
        }
        let unexpected: Vec<_> = outcomes
            .keys()
            .filter(|outcome| outcome.contains("not exactly one kind") || outcome.contains("invalid"))
            .collect();
        if !unexpected.is_empty() {
            violations.push(format!("unexpected outcomes: {unexpected:?}"));
        }
        violations
    }

    /// A server processes a POST without an idempotency key at most once. All attempts of a call have the same
    /// idempotency key.
    fn duplicates(&self) -> Vec<String> {
        let arrivals = self.arrivals.lock().unwrap();
        let mut calls: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for arrival in &*arrivals {
            calls.entry(arrival.call).or_default().push(arrival);
        }
        let mut violations = vec![];
        for (call, attempts) in calls {
            let apis: BTreeSet<_> = attempts.iter().map(|arrival| arrival.api).collect();
            let keys: BTreeSet<_> = attempts.iter().map(|arrival| &arrival.idempotency_key).collect();
            if apis.len() > 1 || keys.len() > 1 {
                violations.push(format!(
                    "call {call} arrived at the APIs {apis:?} with the idempotency keys {keys:?}"
                ));
            }
            let is_unsafe = attempts[0].method == http::Method::POST && attempts[0].idempotency_key.is_none();
            let processed = attempts.iter().filter(|arrival| arrival.may_be_processed).count();
            if is_unsafe && processed > 1 {
                violations
                    .push(format!("POST of call {call} was processed up to {processed} times: {attempts:?}"));
            }
        }
        violations
    }
}

/// Runs `work` without counting its allocations as the client's memory.
pub(crate) fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let mut output = None;
    allocation_counter::opt_out(|| output = Some(work()));
    output.unwrap()
}
