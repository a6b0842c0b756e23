//! Runs the store's script on a clock that the test sets, and compares its logs of amounts with a model.

use proptest::{prelude::*, test_runner::TestRunner};

use super::{
    script::{Question, Script},
    *,
};

/// The limits and the lengths of the quotas of units, in µs.
const UNITS: [(u64, u64); 2] = [(100, 50_000), (250, 200_000)];

const HORIZON: u64 = 5_000;

#[derive(Debug, Clone)]
struct Step {
    /// The time since the previous step, in µs.
    delay: u64,
    action: Action,
}

#[derive(Debug, Clone)]
enum Action {
    Take(u64),
    /// Settles the request with this index from the end. The second number is its new amount.
    Settle(usize, u64),
}

/// The amounts of one request, each with the time since which it counts.
#[derive(Debug, Default)]
struct Request {
    counted: Vec<(u64, u64)>,
}

impl Request {
    fn total(&self) -> u64 {
        self.counted.iter().map(|(_, amount)| amount).sum()
    }

    /// Replaces the amount. Returns by how much it has risen and fallen.
    fn settle(&mut self, actual: u64, now: u64) -> (u64, u64) {
        let (more, mut less) = (actual.saturating_sub(self.total()), self.total().saturating_sub(actual));
        let settled = (more, less);
        if more > 0 {
            self.counted.push((now, more));
        }
        for (_, amount) in &mut self.counted {
            let part = less.min(*amount);
            (*amount, less) = (*amount - part, less - part);
        }
        settled
    }
}

/// Returns the store's script, whose quotas have no grants in their windows.
fn empty_store(server: &RedisServer) -> Script {
    let mut store = Script::new(server, HORIZON);
    // The quotas count as spent at first, because the server has just started.
    query(&mut store, 0, 0, None);
    store.now += 20_000_000;
    store
}

/// Returns when the amount is granted, and the available amount and the wait of each unit.
fn query(
    store: &mut Script,
    amount: u64,
    more: u64,
    returned: Option<(u64, u64)>,
) -> (Option<u64>, Vec<(u64, u64)>) {
    let (count, units) =
        (u64::from(amount > 0), UNITS.map(|(limit, length)| [limit, length, limit, 0, amount, more]));
    let (grants, units) =
        store.query(&Question { count, cost: 1, units: &units, returned, ..Question::default() });
    (grants.first().map(|(at, _)| *at), units)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let delay = prop_oneof![3 => Just(0), 3 => 0u64..2_000, 2 => 0u64..20_000, 1 => 0u64..150_000];
    let amount = prop_oneof![6 => 1u64..60, 1 => 60u64..400];
    let action = prop_oneof![
        2 => amount.clone().prop_map(Action::Take),
        1 => (0usize..6, prop_oneof![Just(0), amount]).prop_map(|(index, actual)| Action::Settle(index, actual)),
    ];
    prop::collection::vec((delay, action).prop_map(|(delay, action)| Step { delay, action }), 1..80)
}

/// Returns the largest amount that counts in a window with the time `at`.
fn most_with(requests: &[Request], at: u64, length: u64) -> u64 {
    let counted = || requests.iter().flat_map(|request| &request.counted);
    let starts = counted()
        .map(|(start, _)| *start)
        .filter(|start| (at.saturating_sub(length - 1)..=at).contains(start));
    let in_window = |start: u64| {
        let within = counted().filter(move |(time, _)| (start..start + length).contains(time));
        within.map(|(_, amount)| amount).sum::<u64>()
    };
    starts.map(in_window).max().unwrap_or(0)
}

#[test]
fn script_grants_amounts_only_if_every_window_has_room() {
    let server = server();
    let (granted, delayed) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let run = |steps: Vec<Step>| {
        let mut store = empty_store(&server);
        let mut requests: Vec<Request> = Vec::new();
        for Step { delay, action } in steps {
            store.now += delay;
            match action {
                Action::Take(amount) => {
                    let (at, units) = query(&mut store, amount, 0, None);
                    let Some(at) = at else {
                        prop_assert!(units.iter().any(|(_, wait)| *wait > HORIZON), "{units:?}");
                        delayed.set(delayed.get() + 1);
                        continue;
                    };
                    for ((limit, length), (left, wait)) in UNITS.iter().zip(units) {
                        // The rest of an amount above the limit needs no room.
                        requests.push(Request { counted: vec![(at, amount.min(*limit))] });
                        let most = most_with(&requests, at, *length);
                        requests.pop();
                        prop_assert!(
                            most <= *limit,
                            "{most} of {limit} in {length} us at {at}: {requests:?}"
                        );
                        prop_assert!(wait == 0 && left <= limit.saturating_sub(amount));
                    }
                    requests.push(Request { counted: vec![(at, amount)] });
                    granted.set(granted.get() + 1);
                }
                Action::Settle(index, actual) => {
                    let Some(index) = requests.len().checked_sub(1 + index) else { continue };
                    let since = requests[index].counted[0].0;
                    let (more, less) = requests[index].settle(actual, store.now);
                    // A process knows only a lower bound of the time.
                    query(&mut store, 0, more, (less > 0).then_some((since - delay.min(3_000), less)));
                }
            }
        }
        Ok(())
    };
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) };
    TestRunner::new(config).run(&steps(), run).unwrap();
    let (granted, delayed) = (granted.get(), delayed.get());
    assert!(granted > 2_000 && delayed > 1_000, "{granted} granted, {delayed} delayed");
}

/// Processes with different quotas of one unit share its log.
#[test]
fn script_counts_the_amounts_of_a_window_in_a_bucket_and_those_of_a_bucket_in_a_window() {
    let server = server();
    let mut store = empty_store(&server);
    let (window, bucket) = ([100, 100_000, 100, 0, 90, 0], [100, 400_000, 100, 1_000_000, 90, 0]);
    for quotas in [[window, bucket], [bucket, window]] {
        store.now += 1_000_000;
        let granted = quotas.map(|quota| {
            store.now += 1_000;
            !store.query(&Question { count: 1, cost: 1, units: &[quota], ..Question::default() }).0.is_empty()
        });
        assert_eq!(granted, [true, false], "{quotas:?}");
    }
}

#[test]
fn script_admits_a_request_as_soon_as_its_amount_fits() {
    let server = server();
    let mut store = empty_store(&server);
    let start = store.now;
    assert_eq!(query(&mut store, 60, 0, None).0, Some(start));
    assert_eq!(query(&mut store, 41, 0, None), (None, vec![(40, 50_000), (190, 0)]));
    // Returned amounts are available immediately.
    store.now += 10_000;
    assert_eq!(query(&mut store, 0, 0, Some((start, 20))).1, [(60, 0), (210, 0)]);
    assert_eq!(query(&mut store, 41, 0, None), (Some(start + 10_000), vec![(19, 0), (169, 0)]));
    // A shortfall counts from now on, and a return of an amount that has left the window has no effect.
    store.now = start + 45_001;
    assert_eq!(query(&mut store, 0, 30, None).1, [(0, 0), (139, 0)]);
    assert_eq!(query(&mut store, 20, 0, None), (Some(start + 50_000), vec![(0, 0), (119, 0)]));
    store.now = start + 50_001;
    assert_eq!(query(&mut store, 0, 0, Some((start, 40))).1, [(9, 0), (159, 0)]);
}

#[test]
fn returned_amounts_do_not_delay_a_request_above_the_limit() {
    let server = server();
    let mut store = empty_store(&server);
    let start = store.now;
    assert_eq!(query(&mut store, 100, 0, None).0, Some(start));
    store.now += 10_000;
    assert!(query(&mut store, 150, 0, None).0.is_none());
    query(&mut store, 0, 0, Some((start, 100)));
    assert_eq!(query(&mut store, 150, 0, None).0, Some(start + 10_000));
}

/// A bucket of 100, which refills one in 500 µs. The margin and the hold take 10 of the burst.
const CAPACITY: u64 = 100;
const BURST: u64 = 90;
const INTERVAL: u64 = 500;

/// Returns when the amount is granted from the bucket, and the available amount and the wait.
fn query_bucket(
    store: &mut Script,
    amount: u64,
    more: u64,
    returned: Option<(u64, u64)>,
) -> (Option<u64>, (u64, u64)) {
    let unit = [CAPACITY, 4 * CAPACITY * INTERVAL, BURST, 1_000 * INTERVAL, amount, more];
    let question =
        Question { count: u64::from(amount > 0), cost: 1, units: &[unit], returned, ..Question::default() };
    let (grants, units) = store.query(&question);
    (grants.first().map(|(at, _)| *at), units[0])
}

/// Returns the store's script with a full bucket.
fn full_bucket(server: &RedisServer) -> Script {
    let mut store = Script::new(server, HORIZON);
    query_bucket(&mut store, 0, 0, None);
    store.now += 20_000_000;
    store
}

#[test]
fn script_takes_amounts_from_a_bucket_and_returns_what_it_has_not_refilled() {
    let server = server();
    let mut store = full_bucket(&server);
    let start = store.now;
    assert_eq!(query_bucket(&mut store, 60, 0, None), (Some(start), (30, 0)));
    assert_eq!(query_bucket(&mut store, 41, 0, None), (None, (30, 5_500)));
    assert_eq!(query_bucket(&mut store, 0, 0, Some((start, 20))), (None, (50, 0)));
    assert_eq!(query_bucket(&mut store, 41, 0, None), (Some(start), (9, 0)));
    // The bucket refills an excess beyond its capacity.
    assert_eq!(query_bucket(&mut store, 0, 130, None), (None, (0, 0)));
    assert_eq!(query_bucket(&mut store, 1, 0, None), (None, (0, 61_000)));
    // An amount above the burst waits until the bucket has been full for some time.
    store.now = start + 101_500;
    assert_eq!(query_bucket(&mut store, 95, 0, None), (None, (82, 6_500)));
    store.now = start + 105_500;
    assert_eq!(query_bucket(&mut store, 95, 0, None), (Some(start + 108_000), (0, 0)));
    // Without the returned amount, the bucket would have been full at the grant of the later one, or soon after.
    for (gap, later, left) in [(40_000, 90, 0), (30_000, 50, 40), (0, 10, 80)] {
        store.now += 1_000_000;
        let first = store.now;
        assert_eq!(query_bucket(&mut store, 80, 0, None).0, Some(first));
        store.now += gap;
        assert_eq!(query_bucket(&mut store, later, 0, None).0, Some(store.now));
        assert_eq!(query_bucket(&mut store, 0, 0, Some((first, 80))), (None, (left, 0)), "{gap}");
    }
    // A store that has lost its memory counts the bucket as spent.
    let mut store = Script::new(&server, HORIZON);
    assert_eq!(query_bucket(&mut store, 1, 0, None).1.0, 0);
}

#[test]
fn script_never_grants_more_amounts_than_a_bucket_contains() {
    let server = server();
    let granted = std::cell::Cell::new(0);
    let run = |steps: Vec<Step>| {
        let mut store = full_bucket(&server);
        let mut requests: Vec<Request> = Vec::new();
        for Step { delay, action } in steps {
            store.now += delay;
            match action {
                Action::Take(amount) => {
                    let amount = amount.min(CAPACITY);
                    let (at, (left, wait)) = query_bucket(&mut store, amount, 0, None);
                    prop_assert_eq!(at.is_none(), wait > HORIZON);
                    let Some(at) = at else { continue };
                    requests.push(Request { counted: vec![(at, amount)] });
                    let level = level(&requests);
                    prop_assert!(level <= CAPACITY * INTERVAL, "{level} us: {requests:?}");
                    // Each amount counts for at most one part of the log longer.
                    prop_assert!(
                        left * INTERVAL <= BURST * INTERVAL && level + left * INTERVAL <= CAPACITY * INTERVAL
                    );
                    granted.set(granted.get() + 1);
                }
                Action::Settle(index, actual) => {
                    let Some(index) = requests.len().checked_sub(1 + index) else { continue };
                    let since = requests[index].counted[0].0;
                    let (more, less) = requests[index].settle(actual, store.now);
                    query_bucket(&mut store, 0, more, (less > 0).then_some((since - delay.min(3_000), less)));
                }
            }
        }
        Ok(())
    };
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) };
    TestRunner::new(config).run(&steps(), run).unwrap();
    assert!(granted.get() > 2_000, "{}", granted.get());
}

/// Returns how long the bucket takes to refill the amounts at the time of the last request, in µs.
fn level(requests: &[Request]) -> u64 {
    let mut amounts: Vec<(u64, u64)> =
        requests.iter().map(|request| (request.counted[0].0, request.total())).collect();
    amounts.sort_unstable();
    let mut last = 0;
    amounts.iter().fold(0, |level: u64, (at, amount)| {
        level.saturating_sub(at - std::mem::replace(&mut last, *at)) + amount * INTERVAL
    })
}
