//! Wake-ups that are shuffled, spurious and late, and of which only the last waker's counts: what comes of it is what
//! comes of the orderly ones.

use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use super::{
    cases::cases,
    crew::{Schedule, Task, crew},
    moody::Moody,
    probe::millis,
    row::Row,
    rows::rows,
    sent::{Told, request, sent},
};

/// Never two at one moment, or it is for the order of their wake-ups to say who is first.
const ANSWERS: [&str; 6] =
    ["503:11 200:23", "200:37", "503:41 503:59 200:71", "200:83", "503:97 200:113", TOO_LATE];

/// For any timeout.
const TOO_LATE: &str = "200:90000";

/// What is told of each call, when each request came to the service, and what is left of the budget.
type Outcome = (Vec<Vec<Result<Told, String>>>, Vec<(Duration, String)>, Option<u32>);

/// Tasks that share the service, each with two calls one after the other.
async fn run(row: &Row, schedule: Schedule) -> Outcome {
    let moody = Moody::well();
    let (service, books) = row.over(&moody);
    let start = Instant::now();
    let tasks = ANSWERS.iter().enumerate().map(|(task, answers)| -> Task<_> {
        let (service, plan, uri) = (service.clone(), moody.plan.clone(), row.uri);
        Box::pin(async move {
            let mut told = Vec::new();
            for _ in 0..2 {
                let request = request(&plan, uri, task, answers);
                let sent = sent(service.clone(), request, start).await;
                told.push(sent.map_err(|error| error.to_string()));
            }
            told
        })
    });
    let told = crew(tasks.collect(), schedule).await;
    let told = told.into_iter().map(|told| told.unwrap_or_else(|panic| panic!("{}: {panic}", row.label)));
    let told = told.collect();
    let came = moody.probe.seen().into_iter().map(|seen| {
        let task = seen.header("x-task").unwrap().to_owned();
        (seen.at - start, task)
    });
    let mut came: Vec<_> = came.collect();
    // Who comes at one moment comes in no order.
    came.sort();
    // Of the calls that are sent three times, the first retry of each, and the second of those that fail.
    books.are_even(row, &moody, 1, 6);
    if let Some(quota) = books.quota {
        let most = moody.probe.arrivals().most_in(quota.window());
        assert!(most <= u64::from(quota.limit()), "{}: {most} in a window", row.label);
    }
    (told, came, books.budget.map(|budget| budget.left()))
}

fn on_paused_time<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(work)
}

#[test]
fn the_outcome_is_that_of_the_orderly_schedule() {
    let mut timeouts = 0;
    for row in rows() {
        let orderly = on_paused_time(run(&row, Schedule::default()));
        assert_eq!(statuses(&orderly)[..10], expected(&row), "{}", row.label);
        timeouts += statuses(&orderly)[10..].iter().filter(|status| **status == 0).count();
        proptest!(cases(24), |(seed: u64, spurious in 0_u32..40)| {
            let schedule = Schedule { seed: Some(seed), spurious, ..Schedule::default() };
            let shuffled = on_paused_time(run(&row, schedule));
            prop_assert_eq!(&shuffled, &orderly, "{}, {:?}", row.label, schedule);
        });
    }
    // Two calls each of the rows with a timeout.
    assert!(timeouts >= 2 * 7, "{timeouts} timeouts");
}

/// 0 for an error.
fn statuses(outcome: &Outcome) -> Vec<u16> {
    outcome.0.iter().flatten().map(|told| told.as_ref().map_or(0, |told| told.status)).collect()
}

/// Of all but the last task.
fn expected(row: &Row) -> [u16; 10] {
    match row.resends() {
        true => [200; 10],
        false => [503, 503, 200, 200, 503, 503, 200, 200, 503, 503],
    }
}

/// Then the times are others, and so may be the order; but all come through, within the quota.
#[test]
fn what_is_woken_late_comes_through() {
    for row in rows() {
        proptest!(cases(12), |(seed: u64, spurious in 0_u32..40, late in 0_u64..400)| {
            let schedule = Schedule { seed: Some(seed), spurious, late: millis(late) };
            let outcome = on_paused_time(run(&row, schedule));
            prop_assert_eq!(&statuses(&outcome)[..10], expected(&row), "{}", row.label);
        });
    }
}
