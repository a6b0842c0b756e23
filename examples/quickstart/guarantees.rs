use std::{collections::HashMap, time::Duration};

use http::Method;
use tokio::time::Instant;

use crate::{
    load::{self, Call},
    support::{ReceivedRequest, RequestLog},
    table::Column,
};

/// The largest number of calls whose broken guarantees are reported individually.
const MAX_REPORTED: usize = 5;

/// Describes each guarantee that was broken.
///
/// For a mock server, compares the calls with the server's log. For a real service, checks only that at least one call
/// got a response.
pub(crate) fn broken(column: &Column<'_>) -> Vec<String> {
    let mut broken = Vec::new();
    if column.calls.iter().all(|call| call.result.is_err()) {
        broken.push("no call got a response".to_owned());
    }
    if let Some(log) = column.server {
        check_log(log, &mut broken);
        check_calls(column.calls, log, &mut broken);
    }
    broken.into_iter().map(|problem| format!("{}: {problem}", column.name)).collect()
}

fn check_log(log: &RequestLog, broken: &mut Vec<String>) {
    let violations = log.violations();
    if violations > 0 {
        broken.push(format!("{violations} requests exceeded the service's limit"));
    }
    let unauthorized = log.unauthorized();
    if unauthorized > 0 {
        broken.push(format!("{unauthorized} requests had a missing or wrong key"));
    }
    let early = log.requests.iter().filter(|request| arrived_early(request, log)).count();
    if early > 0 {
        broken.push(format!("{early} requests arrived during a requested delay"));
    }
}

/// Returns whether the request arrived in the second half of a delay that the server requested.
///
/// Requests in the first half are ignored. The client may have sent them before it received the response that requested
/// the delay.
fn arrived_early(request: &ReceivedRequest, log: &RequestLog) -> bool {
    log.requests.iter().filter_map(requested_delay).any(|(start, delay)| {
        let since = request.at.saturating_duration_since(start);
        delay / 2 < since && since < delay
    })
}

/// If the response to this request requested a delay, returns the start and the length of the delay.
fn requested_delay(request: &ReceivedRequest) -> Option<(Instant, Duration)> {
    Some((request.responded_at?, request.response.retry_after()?))
}

fn check_calls(calls: &[Call], log: &RequestLog, broken: &mut Vec<String>) {
    let mut received: HashMap<&str, Vec<&ReceivedRequest>> = HashMap::new();
    for request in &log.requests {
        let query = request.target.find('?').map_or("", |at| &request.target[at..]);
        received.entry(query).or_default().push(request);
    }
    let mut problems = Vec::new();
    for call in calls {
        let requests = received.remove(load::query(call.number).as_str()).unwrap_or_default();
        problems.extend(check_call(call, &requests).map(|problem| format!("call {} {problem}", call.number)));
    }
    let more = problems.len().saturating_sub(MAX_REPORTED);
    broken.extend(problems.into_iter().take(MAX_REPORTED));
    if more > 0 {
        broken.push(format!("{more} more calls broke a guarantee"));
    }
    let unknown: usize = received.values().map(Vec::len).sum();
    if unknown > 0 {
        broken.push(format!("{unknown} requests at the server belong to no call"));
    }
}

fn check_call(call: &Call, requests: &[&ReceivedRequest]) -> Option<String> {
    let Some(report) = &call.report else { return Some("has no report".to_owned()) };
    let attempts = report.attempt_count();
    if requests.len() > attempts {
        return Some(format!("arrived {} times, but reports {attempts} attempts", requests.len()));
    }
    // A 429 states that the server did not process the request.
    let processed = requests.iter().filter(|request| request.response.retry_after().is_none()).count();
    if call.method == Method::POST && processed > 1 {
        return Some(format!("is a POST, but the server may have processed it {processed} times"));
    }
    let Some(id) = report.request_id() else { return Some("has no request id".to_owned()) };
    if requests.iter().any(|request| request.headers.get("x-request-id") != Some(&id)) {
        return Some(format!("did not send its request id {id:?} with every attempt"));
    }
    let early = requests.windows(2).any(|pair| {
        requested_delay(pair[0])
            .is_some_and(|(start, delay)| pair[1].at.saturating_duration_since(start) < delay)
    });
    early.then(|| "was retried before the requested delay had passed".to_owned())
}
