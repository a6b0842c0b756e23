//! Tests layers with an executor that shuffles and delays wake-ups, polls tasks without a wake-up, and honours only the
//! last waker of a task. Shuffled wake-ups must not change the results.

use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use super::{
    all_layers::all_layers,
    call::{CallRecord, request, send},
    executor::{Schedule, Task, run_tasks},
    faulty_service::FaultyService,
    layer_case::LayerCase,
};
use crate::support::{cases::cases, millis};

/// The scripted responses of each task. All delays differ: with equal delays, the order of the wake-ups would determine
/// which task continues first.
const RESPONSES: [&str; 6] =
    ["503:11 200:23", "200:37", "503:41 503:59 200:71", "200:83", "503:97 200:113", LATE_RESPONSE];

/// A response that arrives after every timeout.
const LATE_RESPONSE: &str = "200:90000";

#[derive(Debug, PartialEq)]
struct RunRecord {
    /// The results of each task's calls.
    calls: Vec<Vec<Result<CallRecord, String>>>,
    /// For each request, the time when it reached the inner service, and its task.
    arrivals: Vec<(Duration, String)>,
    budget_left: Option<u32>,
}

/// Runs tasks that share one service. Each task makes two calls, the second call after the end of the first call.
async fn run(case: &LayerCase, schedule: Schedule) -> RunRecord {
    let inner = FaultyService::healthy();
    let (service, state) = case.over(&inner);
    let start = Instant::now();
    let tasks = RESPONSES.iter().enumerate().map(|(task, responses)| -> Task<_> {
        let (service, plan, uri) = (service.clone(), inner.plan.clone(), case.uri);
        Box::pin(async move {
            let mut records = Vec::new();
            for _ in 0..2 {
                let request = request(&plan, uri, task, responses);
                let result = send(service.clone(), request, start).await;
                records.push(result.map_err(|error| error.to_string()));
            }
            records
        })
    });
    let results = run_tasks(tasks.collect(), schedule).await;
    let calls =
        results.into_iter().map(|result| result.unwrap_or_else(|panic| panic!("{}: {panic}", case.label)));
    let calls = calls.collect();
    let arrivals = inner.limited.seen().into_iter().map(|seen| {
        let task = seen.header("x-task").unwrap().to_owned();
        (seen.at - start, task)
    });
    let mut arrivals: Vec<_> = arrivals.collect();
    // Requests that arrive at the same time have no defined order.
    arrivals.sort();
    // The retry budget lacks the credit of at most six retries: the first retry of each call with three attempts, and
    // both retries of each failed call.
    state.assert_idle(case, &inner, 1, 6);
    if let Some(quota) = state.quota {
        let most = inner.limited.arrivals().most_in(quota.window());
        assert!(most <= u64::from(quota.limit()), "{}: {most} requests in one window", case.label);
    }
    RunRecord { calls, arrivals, budget_left: state.budget.map(|budget| budget.left()) }
}

fn block_on_paused<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(work)
}

#[test]
fn shuffled_and_spurious_wake_ups_do_not_change_results() {
    let mut timeouts = 0;
    for case in all_layers() {
        let in_order = block_on_paused(run(&case, Schedule::default()));
        assert_eq!(statuses(&in_order)[..10], expected_statuses(&case), "{}", case.label);
        timeouts += statuses(&in_order)[10..].iter().filter(|status| **status == 0).count();
        proptest!(cases(24), |(seed: u64, spurious in 0_u32..40)| {
            let schedule = Schedule { seed: Some(seed), spurious, ..Schedule::default() };
            let shuffled = block_on_paused(run(&case, schedule));
            prop_assert_eq!(&shuffled, &in_order, "{}, {:?}", case.label, schedule);
        });
    }
    // The last task makes two calls. In each of the seven cases with a timeout, both calls time out.
    assert!(timeouts >= 2 * 7, "only {timeouts} calls timed out");
}

/// Returns the status of each call, or 0 if the call failed.
fn statuses(run: &RunRecord) -> Vec<u16> {
    run.calls.iter().flatten().map(|call| call.as_ref().map_or(0, |record| record.status)).collect()
}

/// Returns the expected statuses of all tasks except the last task, whose responses arrive after every timeout.
fn expected_statuses(case: &LayerCase) -> [u16; 10] {
    match case.retries() {
        true => [200; 10],
        false => [503, 503, 200, 200, 503, 503, 200, 200, 503, 503],
    }
}

/// Late wake-ups may change the times and the order of the calls, but not the statuses.
#[test]
fn calls_with_late_wake_ups_complete_within_the_quota() {
    for case in all_layers() {
        proptest!(cases(12), |(seed: u64, spurious in 0_u32..40, late in 0_u64..400)| {
            let schedule = Schedule { seed: Some(seed), spurious, max_delay: millis(late) };
            let run = block_on_paused(run(&case, schedule));
            prop_assert_eq!(&statuses(&run)[..10], expected_statuses(&case), "{}", case.label);
        });
    }
}
