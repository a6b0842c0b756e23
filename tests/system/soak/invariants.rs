//! Checks the recorded history. Each function checks one guarantee and returns its violations.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use http::Method;
use tower_outbound::test_util::{self, Arrivals};

use super::{
    api::{APIS, MARGIN, SHARED, quotas},
    history::{Arrival, History, LimiterChange, RequestedPause, instant},
    log_scanner,
};

/// Returns the violations of all guarantees.
pub(crate) fn violations(history: &History) -> Vec<String> {
    let mut violations = history.violations.lock().unwrap().clone();
    violations.extend(unaccounted_calls(history));
    violations.extend(duplicates(history));
    violations.extend(incorrect_reports(history));
    violations.extend((0..APIS).flat_map(|api| exceeded_windows(history, api)));
    violations.extend(early_requests(history));
    violations.extend(log_scanner::take_findings());
    violations
}

/// Checks that every call ended exactly once, both in the callers' count and in the log.
fn unaccounted_calls(history: &History) -> Vec<String> {
    let started = history.calls_started.load(Relaxed);
    let outcomes = history.call_outcomes.lock().unwrap();
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

fn by_call(arrivals: &[Arrival]) -> BTreeMap<u64, Vec<&Arrival>> {
    let mut calls: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for arrival in arrivals {
        calls.entry(arrival.call).or_default().push(arrival);
    }
    calls
}

/// A server processes a POST without an idempotency key at most once. All attempts of a call have the same idempotency
/// key.
fn duplicates(history: &History) -> Vec<String> {
    let arrivals = history.arrivals.lock().unwrap();
    let mut violations = vec![];
    for (call, attempts) in by_call(&arrivals) {
        let apis: BTreeSet<_> = attempts.iter().map(|arrival| arrival.api).collect();
        let keys: BTreeSet<_> = attempts.iter().map(|arrival| &arrival.idempotency_key).collect();
        if apis.len() > 1 || keys.len() > 1 {
            violations
                .push(format!("call {call} arrived at the APIs {apis:?} with the idempotency keys {keys:?}"));
        }
        let is_unsafe = attempts[0].method == Method::POST && attempts[0].idempotency_key.is_none();
        let processed = attempts.iter().filter(|arrival| arrival.may_be_processed).count();
        if is_unsafe && processed > 1 {
            violations
                .push(format!("POST of call {call} was processed up to {processed} times: {attempts:?}"));
        }
    }
    violations
}

/// The reports of calls agree with the servers: every reported response was sent, and every arrived attempt is
/// reported.
fn incorrect_reports(history: &History) -> Vec<String> {
    let arrivals = history.arrivals.lock().unwrap();
    let calls = by_call(&arrivals);
    let reports = history.reports.lock().unwrap();
    let mut violations = vec![];
    for report in &*reports {
        let arrived = calls.get(&report.call).map_or(&[][..], Vec::as_slice);
        let maybe_processed = arrived.iter().filter(|arrival| arrival.may_be_processed).count();
        // `report.maybe_sent` includes attempts with status 401, although the server did not process these attempts.
        if report.responses > arrived.len() || maybe_processed > report.maybe_sent {
            violations.push(format!("{report:?}, but the server received {arrived:?}"));
        }
    }
    violations
}

/// In the load phase, no window exceeds the larger quota, even if the quota changes within the window. A window
/// without a change stays within the current quota.
///
/// A quarter of the margin covers the network delay. A request with a longer delay, as on a busy machine, is not
/// counted, because the quota guarantees nothing for that request. The limiter enforces the other three quarters of the
/// margin.
fn exceeded_windows(history: &History, api: usize) -> Vec<String> {
    let arrivals = history.arrivals.lock().unwrap();
    let in_time = arrivals.iter().filter(|arrival| arrival.api == api).filter(|arrival| {
        Duration::from_nanos(arrival.arrived_at.saturating_sub(arrival.permitted_at)) <= MARGIN / 4
    });
    let in_time: Vec<_> = in_time.collect();
    let between = |from: u64, to: u64| -> Arrivals {
        let selected = in_time.iter().filter(|arrival| (from..=to).contains(&arrival.arrived_at));
        selected
            .map(|arrival| test_util::Arrival::from(instant(arrival.arrived_at)).with_permits(arrival.cost))
            .collect()
    };
    let changes = history.limiter_changes.lock().unwrap();
    let quota_changes = changes.iter().filter_map(|change| match change {
        LimiterChange::Quota { api: changed, at, limit } if *changed == api => Some((*at, *limit)),
        _ => None,
    });
    let quota_changes: Vec<_> = quota_changes.collect();
    let [_, large, recovery] = quotas(api);
    let recovery_start =
        quota_changes.iter().find(|(_, limit)| *limit == recovery.limit()).map_or(u64::MAX, |(at, _)| *at);

    let mut violations = vec![];
    let mut check = |from: u64, to: u64, limit: u32| {
        let most = between(from, to).most_in(large.window());
        if most > u64::from(limit) {
            violations.push(format!(
                "API {api}: {most} permits in a window with a limit of {limit}, between {from} and {to}"
            ));
        }
        most
    };
    let most = check(0, recovery_start, large.limit());
    let mut fullest = 0;
    for (number, (at, limit)) in quota_changes.iter().enumerate() {
        // A request with a permit from before the change arrives at most one margin later, so the check starts after
        // the margin.
        let from = at.saturating_add(u64::try_from(MARGIN.as_nanos()).unwrap());
        let to = quota_changes.get(number + 1).map_or(u64::MAX, |(at, _)| *at);
        if from < to {
            fullest = fullest.max(check(from, to, *limit) * 100 / u64::from(*limit));
        }
    }
    let all = arrivals.iter().filter(|arrival| arrival.api == api).count();
    println!(
        "  API {api}: {all} arrivals, {} of them within a quarter of the margin, at most {most} of {} in a window, \
         at most {fullest} % of the quota between two changes",
        in_time.len(),
        large.limit(),
    );
    violations
}

/// A limiter grants no permit from the time when the client receives a pause until the pause ends.
///
/// Two threads use the shared API. If one thread gets a permit and the other thread then starts a pause, the time stamp
/// of the permit may lie within the pause.
fn early_requests(history: &History) -> Vec<String> {
    let arrivals = history.arrivals.lock().unwrap();
    let (changes, pauses) = (history.limiter_changes.lock().unwrap(), history.pauses.lock().unwrap());
    let mut violations = vec![];
    let mut checked = 0;
    for RequestedPause { api, sent_at, length, header, received_at } in &*pauses {
        let Some(received_at) = received_at else { continue };
        let resumed = changes.iter().filter_map(|change| match change {
            LimiterChange::Resume { api: resumed, at } if resumed == api && at >= received_at => Some(*at),
            _ => None,
        });
        let end = sent_at.saturating_add(u64::try_from(length.as_nanos()).unwrap());
        let end = resumed.min().unwrap_or(u64::MAX).min(end);
        let tolerance = if *api == SHARED { 500_000_000 } else { 0 };
        let begin = received_at.saturating_add(tolerance);
        checked += u32::from(begin < end);
        let early =
            arrivals.iter().filter(|it| it.api == *api && begin < it.permitted_at && it.permitted_at < end);
        for early in early {
            violations.push(format!(
                "API {api}: a permit during the pause by {header} from {received_at} to {end}: {early:?}"
            ));
        }
    }
    println!("  {} pauses requested, {checked} of them received by the client", pauses.len());
    violations
}
