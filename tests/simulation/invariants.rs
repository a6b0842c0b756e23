//! Checks the history of a run. Each function checks one of the crate's guarantees, or a part of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;
use tower_outbound::{
    Report,
    call::{AttemptReport, Delivery, Outcome, StopReason},
    limit::Priority,
    test_util::Arrivals,
};

use super::{
    history::{Arrival, Call, CallResult, Link, Records},
    network::STEP,
    plan::{CLIENTS, MAX_ATTEMPTS, Plan, SERVERS},
};

/// Adds a violation of the named guarantee for each text.
type Found = Vec<String>;

pub(crate) fn violations(plan: &Plan, records: &Records) -> Found {
    let mut found = records.violations.clone();
    for client in 0..CLIENTS {
        for server in 0..SERVERS {
            let link = Link { client, server };
            found.extend(exceeded_windows(plan, records, link));
            // Requests of different parts take turns.
            if !plan.has_parts {
                found.extend(broken_order(records, link));
            }
            found.extend(early_permits(records, link));
            found.extend(repeated_ids(records, link));
            found.extend(exceeded_budget(plan, records, link));
        }
    }
    let mut arrivals = BTreeMap::<_, Vec<_>>::new();
    for arrival in &records.arrivals {
        arrivals.entry(arrival.call).or_default().push(arrival);
    }
    for (number, call) in records.calls.iter().enumerate() {
        let arrived = arrivals.remove(&number).unwrap_or_default();
        let texts = [
            unwanted_attempts(call, &arrived),
            unrecorded_retry(plan, call, &arrived),
            late_ends(call),
            arrivals_after_cancellation(plan, records, number, call, &arrived),
            wrong_reports(call, &arrived),
            wrong_body(call, &arrived),
        ];
        found.extend(
            texts
                .into_iter()
                .flatten()
                .map(|text| format!("{}: call {number} ({}): {text}", call.link, call.method)),
        );
    }
    found
}

/// Guarantee 1: no window has more permits or departures than the quota allows. At the server, this holds for the
/// requests that needed at most a quarter of the margin for their way.
fn exceeded_windows(plan: &Plan, records: &Records, link: Link) -> Found {
    let quota = plan.quotas[link.server];
    let origin = Instant::now();
    let most = |times: &mut dyn Iterator<Item = Duration>| {
        times.map(|at| origin + at).collect::<Arrivals>().most_in(quota.window())
    };
    let granted = most(&mut records.permits.iter().filter(|it| it.link == link).map(|it| it.at.1));
    let prompt = |it: &&Arrival| it.link == link && it.at - it.permitted_at <= quota.margin() / 4;
    let arrived = most(&mut records.arrivals.iter().filter(prompt).map(|it| it.at));
    let ends = records
        .calls
        .iter()
        .filter(|call| call.link == link)
        .filter_map(|call| Some((call.started.1, call.end.as_ref()?.result.report()?)));
    let sent = most(&mut ends.flat_map(|(started, report)| {
        report.attempts().into_iter().filter_map(move |attempt| Some(started + attempt.sent?))
    }));
    let limit = u64::from(quota.limit());
    let mut found = Vec::new();
    for (what, count) in [("permits", granted), ("departures", sent), ("arrivals", arrived)] {
        if count > limit {
            found.push(format!("window: {link}: {count} {what} in a window, but the quota allows {limit}"));
        }
    }
    found
}

/// Guarantee 2: the first attempts of each priority get their permits in the order in which their calls started.
///
/// Permits of one instant have no order, because a granted call leaves when its task runs. Calls that may have waited
/// for a key do not count, because their permit may expire during that wait.
fn broken_order(records: &Records, link: Link) -> Found {
    let mut found = Vec::new();
    for priority in [Priority::High, Priority::Normal, Priority::Low] {
        let mut seen = BTreeSet::new();
        // The latest start of the calls with a permit, before this instant and in it.
        let (mut before, mut instant, mut within) = (None, None, None);
        for permit in records.permits.iter().filter(|permit| permit.link == link) {
            let call = &records.calls[permit.call];
            if call.priority != priority || !seen.insert(permit.call) {
                continue;
            }
            let waited_for_key = |(of, begin, end): &(Link, Duration, Duration)| {
                *of == link && *begin <= permit.at.1 && call.started.1 <= *end
            };
            if records.refreshes.iter().any(waited_for_key) {
                continue;
            }
            if instant.replace(permit.at.1) != Some(permit.at.1) {
                before = before.max(within.take());
            }
            if before.is_some_and(|before| before > call.started) {
                found.push(format!("order: {link}: call {} got its permit after a later call", permit.call));
            }
            within = within.max(Some(call.started));
        }
    }
    found
}

/// Guarantee 4: the limiter grants no permit before the requested delay has passed.
fn early_permits(records: &Records, link: Link) -> Found {
    let mut found = Vec::new();
    for pause in records.pauses.iter().filter(|pause| pause.link == link) {
        let (position, at) = pause.at;
        let is_early = |it: &&super::history::Permit| {
            it.link == link && it.at.0 > position && it.at.1 < at + pause.length
        };
        found.extend(records.permits.iter().filter(is_early).map(|permit| {
            let after = permit.at.1 - at;
            format!(
                "never early: {link}: call {} got a permit {after:?} into a {:?} pause",
                permit.call, pause.length
            )
        }));
    }
    found
}

/// Guarantee 9: each call has its own request id.
fn repeated_ids(records: &Records, link: Link) -> Found {
    let mut calls = BTreeMap::<_, BTreeSet<_>>::new();
    for arrival in records.arrivals.iter().filter(|arrival| arrival.link == link) {
        calls.entry(&arrival.request_id).or_default().insert(arrival.call);
    }
    calls.retain(|_, calls| calls.len() > 1);
    calls
        .into_iter()
        .map(|(id, calls)| format!("accounted: {link}: {id} belongs to the calls {calls:?}"))
        .collect()
}

/// Guarantee 5: a request that is not idempotent is processed at most once, and no attempt arrives twice.
fn unwanted_attempts(call: &Call, arrived: &[&Arrival]) -> Option<String> {
    let attempts: BTreeSet<_> = arrived.iter().map(|arrival| arrival.attempt).collect();
    let processed = arrived.iter().filter(|arrival| arrival.may_be_processed).count();
    // A request whose key was rejected is resent once, in addition.
    let most = if call.is_idempotent { MAX_ATTEMPTS as usize + 1 } else { 1 };
    (attempts.len() < arrived.len() || processed > most || arrived.len() > MAX_ATTEMPTS as usize + 1)
        .then(|| format!("never twice: the server may have processed {processed} of {arrived:?}"))
}

/// Guarantee 8: a request body over the replay limit is not recorded, so no attempt follows one that has sent it.
fn unrecorded_retry(plan: &Plan, call: &Call, arrived: &[&Arrival]) -> Option<String> {
    let sent = arrived.iter().filter(|arrival| arrival.is_read).map(|arrival| arrival.attempt).min()?;
    let is_resent = arrived.iter().any(|arrival| arrival.attempt > sent);
    (call.body > plan.replay_limit && is_resent)
        .then(|| format!("bounded: a body of {} bytes was recorded: {arrived:?}", call.body))
}

/// Guarantee 7: a call ends by its deadline. tokio's timers have the resolution of one step.
fn late_ends(call: &Call) -> Option<String> {
    let Some(end) = &call.end else { return Some("never ended".to_owned()) };
    if matches!(end.result, CallResult::Cancelled) {
        return None;
    }
    let took = end.at.1 - call.started.1;
    (took > call.limit + STEP).then(|| format!("deadline: took {took:?} of at most {:?}", call.limit))
}

/// Guarantee 3: a dropped call gets no permit, and nothing of it is sent.
fn arrivals_after_cancellation(
    plan: &Plan,
    records: &Records,
    number: usize,
    call: &Call,
    arrived: &[&Arrival],
) -> Option<String> {
    let end = call.end.as_ref().filter(|end| matches!(end.result, CallResult::Cancelled))?;
    if records.permits.iter().any(|permit| permit.call == number && permit.at.0 > end.at.0) {
        return Some("cancellation: got a permit after it was dropped".to_owned());
    }
    // A packet needs one step more than the latency at each of its ends. A packet that was held arrives after the
    // release. An order of packets may delay one by another.
    let longest = plan.latency.1 * 2 + STEP * 2;
    let late = arrived.iter().find(|arrival| {
        let was_held = records.releases.iter().any(|at| *at >= end.at.1 && arrival.at <= *at + longest);
        arrival.at > end.at.1 + longest && !was_held
    });
    late.map(|arrival| format!("cancellation: dropped at {:?}, but arrived as {arrival:?}", end.at.1))
}

/// Guarantee 9: every result has a report that agrees with what the server saw.
fn wrong_reports(call: &Call, arrived: &[&Arrival]) -> Option<String> {
    let result = &call.end.as_ref()?.result;
    let status = match result {
        CallResult::Cancelled => return None,
        CallResult::Response { status, .. } => Some(*status),
        CallResult::Failed { .. } | CallResult::Read { .. } => None,
    };
    let Some(report) = result.report() else { return Some("accounted: has no report".to_owned()) };
    let attempts = report.attempts();
    let wrong = wrong_report(report, &attempts, status)
        .or_else(|| attempts.iter().find_map(|attempt| wrong_attempt(attempt, report, arrived)))
        .or_else(|| {
            let unknown = arrived.iter().find(|it| it.attempt as usize > attempts.len());
            unknown.map(|arrival| format!("{arrival:?} is not in the report"))
        });
    wrong.map(|text| format!("accounted: {text}: {report:?}, arrived: {arrived:?}"))
}

/// A body that `bytes` has read is that of the last attempt. A failed body has a reason why no retry followed.
fn wrong_body(call: &Call, arrived: &[&Arrival]) -> Option<String> {
    let CallResult::Read { body, report: Some(report) } = &call.end.as_ref()?.result else { return None };
    let last = arrived.iter().find(|arrival| arrival.attempt as usize == report.attempt_count())?;
    match body {
        Ok(length) if *length == last.length && report.attempts().last()?.outcome?.status().is_some() => None,
        Ok(length) => {
            Some(format!("body: read {length} bytes, but the last attempt is {last:?}: {report:?}"))
        }
        Err(_) if report.stop_reason() == Some(StopReason::Success) => {
            Some(format!("body: failed, but the report states a success: {report:?}"))
        }
        Err(_) => None,
    }
}

/// Counts the bodies that `bytes` has read after an earlier body of the same call broke.
pub(crate) fn replaced_bodies(records: &Records) -> usize {
    let replaced = |(number, call): &(usize, &Call)| {
        let Some(CallResult::Read { body: Ok(_), report: Some(report) }) =
            call.end.as_ref().map(|end| &end.result)
        else {
            return false;
        };
        let is_broken = |arrival: &Arrival| {
            arrival.call == *number
                && arrival.status == Some(200)
                && (arrival.attempt as usize) < report.attempt_count()
        };
        records.arrivals.iter().any(is_broken)
    };
    records.calls.iter().enumerate().filter(replaced).count()
}

/// The credit that a retry after a throttled response costs. Other retries cost more.
const LOWEST_RETRY_COST: u32 = 5;

/// Guarantee 8: the retries of a link cost no more than its budget has. Each call with a response may have returned the
/// cost of one retry.
fn exceeded_budget(plan: &Plan, records: &Records, link: Link) -> Option<String> {
    let mut arrived = BTreeMap::<_, (u32, bool)>::new();
    for arrival in records.arrivals.iter().filter(|arrival| arrival.link == link) {
        let (count, is_rejected) = arrived.entry(arrival.call).or_default();
        *count += 1;
        *is_rejected |= arrival.status == Some(401);
    }
    // A resend with another key costs nothing.
    let (mut retries, mut gained) = (0, 0);
    for (call, (count, is_rejected)) in arrived {
        let result = records.calls[call].end.as_ref().map(|end| &end.result);
        let has_failed =
            matches!(result, Some(CallResult::Failed { .. } | CallResult::Read { body: Err(_), .. }));
        retries += (count - 1).saturating_sub(u32::from(is_rejected) + u32::from(!has_failed));
        gained += u32::from(!has_failed);
    }
    let most = plan.budget + gained;
    (retries * LOWEST_RETRY_COST > most)
        .then(|| format!("budget: {link}: {retries} retries for {most} credits"))
}

fn wrong_report(report: &Report, attempts: &[AttemptReport], status: Option<u16>) -> Option<String> {
    if report.request_id().is_none() || report.stop_reason().is_none() {
        return Some("the report has no request id or no stop reason".to_owned());
    }
    if !attempts.iter().map(|attempt| attempt.number).eq(1..=attempts.len() as u32) {
        return Some("the attempts are not numbered from 1".to_owned());
    }
    let last = attempts.last().and_then(|attempt| attempt.outcome?.status()).map(|status| status.as_u16());
    (status.is_some() && last != status).then(|| "the last attempt has another status".to_owned())
}

fn wrong_attempt(attempt: &AttemptReport, report: &Report, arrived: &[&Arrival]) -> Option<String> {
    let arrival = arrived.iter().find(|arrival| arrival.attempt == attempt.number);
    let status = attempt.outcome.and_then(Outcome::status).map(|status| status.as_u16());
    let Some(arrival) = arrival else {
        return status.map(|_| format!("attempt {} has a response, but did not arrive", attempt.number));
    };
    let id = report.request_id();
    if id.is_none_or(|id| id != arrival.request_id.as_str()) {
        return Some("the request id differs".to_owned());
    }
    if status.is_some() && arrival.status != status {
        return Some(format!("attempt {} has another status", attempt.number));
    }
    if attempt.sent.is_none() {
        return Some(format!("attempt {} was not sent, but arrived", attempt.number));
    }
    let delivery = attempt.outcome.map(Outcome::delivery);
    let is_proven = matches!(delivery, Some(Delivery::NotSent | Delivery::Rejected));
    (is_proven && arrival.may_be_processed)
        .then(|| format!("attempt {} was reported as not processed, but arrived", attempt.number))
}
