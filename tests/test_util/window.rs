//! Tests `Arrivals`, which counts permits in sliding windows and asserts a quota.

use std::panic::catch_unwind;

use proptest::prelude::*;
use tokio::time::Instant;
use tower_outbound::{
    Quota,
    test_util::{Arrival, Arrivals},
};

use super::{support::cases::cases, *};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Creates one arrival at each of the given times, in milliseconds.
fn at(times: impl IntoIterator<Item = u64>) -> Arrivals {
    let start = Instant::now();
    times.into_iter().map(|time| start + millis(time)).collect()
}

#[test]
fn window_of_arrivals_includes_both_of_its_ends() {
    let quota = Quota::per_second(3).unwrap();
    let start = Instant::now();
    let with_last_at = |offset: Duration| {
        let mut arrivals = at([]);
        arrivals.extend([0, 400, 900].map(|time| start + millis(time)));
        arrivals.extend([start + offset]);
        arrivals
    };
    with_last_at(secs(1) + Duration::from_nanos(1)).assert_within(quota);
    let over = with_last_at(secs(1));
    assert_eq!((over.most_in(secs(1)), over.most_in(millis(999))), (4, 3));
    assert!(catch_unwind(|| over.assert_within(quota)).is_err(), "a window includes both of its ends");
}

#[test]
fn assert_within_excludes_the_margin_from_the_window() {
    let quota = Quota::per_second(1).unwrap().with_margin(secs(1)).unwrap();
    at([0, 1_001]).assert_within(quota);
    assert_eq!(at([0, 1_001]).most_in(quota.window() + quota.margin()), 2);
    assert!(catch_unwind(|| at([0, 1_000]).assert_within(quota)).is_err());
}

/// A bucket of 100 permits that refills 100 permits per minute grants 200 permits in the first minute.
#[test]
fn assert_within_reports_the_window_in_which_a_naive_bucket_exceeds_its_quota() {
    let times = [0; 100].into_iter().chain((1..=200).map(|number| number * 600));
    let arrivals = at(times.map(|time| 5_000 + time).chain([0]));
    let quota = Quota::per_minute(100).unwrap();
    assert_eq!(arrivals.most_in(secs(60)), 200);
    let message = panic_message(catch_unwind(|| arrivals.assert_within(quota)).unwrap_err());
    let lines: Vec<_> = message.lines().collect();
    assert_eq!(
        lines[0],
        format!("200 permits in a window of 60s including both ends, but the quota allows 100: {quota}")
    );
    assert_eq!(lines[1], "the window starts 5s after the first of 301 arrivals");
    assert_eq!(lines[3..6], ["  0ns (100)", "  600ms", "  1.2s"]);
    assert_eq!(*lines.last().unwrap(), "  and at 81 later times");
    assert_eq!(lines.len(), 24);
}

#[test]
fn assert_within_counts_permits_instead_of_arrivals() {
    let start = Instant::now();
    let with_second_cost = |second: u32| {
        [(0, 4), (500, second)].map(|(time, cost)| Arrival::from(start + millis(time)).with_permits(cost))
    };
    let quota = Quota::per_second(10).unwrap();
    with_second_cost(6).into_iter().collect::<Arrivals>().assert_within(quota);
    let over: Arrivals = with_second_cost(7).into_iter().collect();
    let message = panic_message(catch_unwind(|| over.assert_within(quota)).unwrap_err());
    assert!(message.starts_with("11 permits") && message.ends_with("\n  0ns (4)\n  500ms (7)"), "{message}");
}

#[test]
fn most_in_accepts_empty_arrivals_and_extreme_window_lengths() {
    assert_eq!(at([]).most_in(secs(1)), 0);
    at([]).assert_within(Quota::per_second(1).unwrap());
    assert_eq!(at([0, 1, 9_999_999]).most_in(Duration::MAX), 3);
    assert_eq!(at([5, 5, 5, 6]).most_in(Duration::ZERO), 3);
}

#[test]
#[should_panic(expected = "invalid arrival: the latest time is 1ms before the earliest time")]
fn constructing_an_arrival_panics_if_the_latest_time_precedes_the_earliest() {
    let start = Instant::now();
    Arrival::between(start + millis(1), start);
}

proptest! {
    #![proptest_config(cases(1_000))]

    /// Compares `most_in` with a simple implementation, which counts every window that starts with an arrival.
    #[test]
    fn most_in_finds_the_window_with_the_most_permits(
        arrivals in prop::collection::vec((0..300_u64, 0..40_u64, 0..4_u32), 0..40), window in 0..200_u64,
    ) {
        let within = |start: u64, (from, length, _): &&(u64, u64, u32)| {
            *from >= start && from + length <= start + window
        };
        let in_window = |start| -> u64 {
            arrivals.iter().filter(|arrival| within(start, arrival)).map(|(_, _, permits)| u64::from(*permits)).sum()
        };
        let most = arrivals.iter().map(|(from, _, _)| in_window(*from)).max().unwrap_or(0);
        let start = Instant::now();
        let recorded: Arrivals = arrivals
            .iter()
            .map(|(from, length, permits)| {
                Arrival::between(start + millis(*from), start + millis(from + length)).with_permits(*permits)
            })
            .collect();
        prop_assert_eq!(recorded.most_in(millis(window)), most);
    }
}
