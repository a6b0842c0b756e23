use std::{collections::HashMap, time::Duration};

use http::Method;
use tokio::time::Instant;

use crate::{
    load::{self, Call},
    support::{Ledger, Seen},
    table::Column,
};

/// So many calls are told of one by one.
const SHOWN: usize = 5;

/// What was promised and not kept, in words. The server's ledger is what counts, where there is one.
pub(crate) fn broken(column: &Column<'_>) -> Vec<String> {
    let mut broken = Vec::new();
    if column.calls.iter().all(|call| call.result.is_err()) {
        broken.push("no call got an answer".to_owned());
    }
    if let Some(ledger) = column.ledger {
        check_ledger(ledger, &mut broken);
        check_calls(column.calls, ledger, &mut broken);
    }
    broken.into_iter().map(|promise| format!("{}: {promise}", column.name)).collect()
}

fn check_ledger(ledger: &Ledger, broken: &mut Vec<String>) {
    let violations = ledger.violations();
    if violations > 0 {
        broken.push(format!("{violations} requests arrived that were over the limit"));
    }
    let unauthorized = ledger.unauthorized();
    if unauthorized > 0 {
        broken.push(format!("{unauthorized} requests arrived without the right key"));
    }
    let early = ledger.requests.iter().filter(|seen| came_early(seen, ledger)).count();
    if early > 0 {
        broken.push(format!("{early} requests arrived while the server had asked for a pause"));
    }
}

/// Whether it came in the second half of a pause: in the first there may be some that were under way.
fn came_early(seen: &Seen, ledger: &Ledger) -> bool {
    ledger.requests.iter().filter_map(pause).any(|(start, length)| {
        let since = seen.at.saturating_duration_since(start);
        length / 2 < since && since < length
    })
}

/// The pause that its answer asked for.
fn pause(seen: &Seen) -> Option<(Instant, Duration)> {
    Some((seen.answered?, seen.answer.retry_after()?))
}

fn check_calls(calls: &[Call], ledger: &Ledger, broken: &mut Vec<String>) {
    let mut arrived: HashMap<&str, Vec<&Seen>> = HashMap::new();
    for seen in &ledger.requests {
        let query = seen.target.find('?').map_or("", |at| &seen.target[at..]);
        arrived.entry(query).or_default().push(seen);
    }
    let mut wrong = Vec::new();
    for call in calls {
        let seen = arrived.remove(load::query(call.number).as_str()).unwrap_or_default();
        wrong.extend(check_call(call, &seen).map(|what| format!("call {} {what}", call.number)));
    }
    let more = wrong.len().saturating_sub(SHOWN);
    broken.extend(wrong.into_iter().take(SHOWN));
    if more > 0 {
        broken.push(format!("and {more} more calls like these"));
    }
    let stray: usize = arrived.values().map(Vec::len).sum();
    if stray > 0 {
        broken.push(format!("{stray} requests arrived that belong to no call"));
    }
}

fn check_call(call: &Call, seen: &[&Seen]) -> Option<String> {
    let Some(report) = &call.report else { return Some("has no report".to_owned()) };
    let attempts = report.attempt_count();
    if seen.len() > attempts {
        return Some(format!("arrived {} times and reports {attempts} attempts", seen.len()));
    }
    if call.method == Method::POST && seen.len() > 1 {
        return Some(format!("is a POST and arrived {} times", seen.len()));
    }
    let Some(id) = report.request_id() else { return Some("has no request id".to_owned()) };
    if seen.iter().any(|seen| seen.headers.get("x-request-id") != Some(&id)) {
        return Some(format!("did not carry its request id {id:?} on every attempt"));
    }
    let early = seen.windows(2).any(|pair| {
        pause(pair[0]).is_some_and(|(start, length)| pair[1].at.saturating_duration_since(start) < length)
    });
    early.then(|| "came back before the time that the server had asked for".to_owned())
}
