//! Tests which requests in flight the store's script counts and admits, on a clock that the test sets.

use super::{
    script::{Flight, Question, Script},
    *,
};

const SECOND: u64 = 1_000_000;

/// A bucket of 100 in 100 s.
const QUOTA: [u64; 4] = [100, 50, 100 * SECOND, 2_000_000_000];

/// Returns a store that has run for a long time.
fn store(server: &RedisServer) -> Script {
    let mut store = Script::new(server, 0);
    admit(&mut store, 0, flight("first", 0, 60));
    store.now += 1_000 * SECOND;
    store
}

/// At most two requests may be in flight.
fn flight(process: &'static str, used: u64, expiry: u64) -> Flight {
    Flight { process, max: 2, used, till: 0, expiry: expiry * SECOND, number: 0 }
}

/// Returns how many requests the store admits.
fn admit(store: &mut Script, count: u64, flight: Flight) -> u64 {
    let question = Question { count, cost: 1, quotas: &[QUOTA], flight: Some(flight), ..Question::default() };
    store.reply(&question).6
}

/// Returns whether the quota has permits. It has none after the store has detected a loss of its memory.
fn has_permits(store: &mut Script) -> bool {
    !store.query(&Question { count: 1, cost: 1, quotas: &[QUOTA], ..Question::default() }).0.is_empty()
}

/// During a deployment, old and new processes may have different settings.
#[test]
fn requests_of_each_process_expire_by_its_own_setting() {
    let server = server();
    let mut store = store(&server);
    let till = store.now + 60 * SECOND;
    assert_eq!(admit(&mut store, 2, flight("long", 0, 60)), 2);
    store.now += 19 * SECOND;
    assert_eq!(admit(&mut store, 2, flight("short", 0, 5)), 0);
    assert_eq!(admit(&mut store, 0, Flight { till, ..flight("long", 1, 60) }), 0);
    assert_eq!(admit(&mut store, 2, flight("short", 0, 5)), 1);
    store.now += 5 * SECOND;
    assert_eq!(admit(&mut store, 1, flight("long", 1, 60)), 1);
    assert!(has_permits(&mut store));
}

#[test]
fn missing_requests_are_a_loss_of_memory_only_until_they_expire() {
    let server = server();
    for (wait, is_lost) in [(9, true), (10, false)] {
        let mut store = store(&server);
        let till = store.now + 10 * SECOND;
        assert_eq!(admit(&mut store, 1, flight("suspended", 0, 10)), 1);
        store.now += wait * SECOND;
        // Another process or an eviction deletes the entry.
        redis::cmd("DEL").arg("{a}:flight").exec(&mut store.connection).unwrap();
        admit(&mut store, 0, Flight { till, ..flight("suspended", 1, 10) });
        assert_eq!(has_permits(&mut store), !is_lost, "{wait}");
    }
}

/// The connection of a query that has timed out may deliver it later.
#[test]
fn query_that_arrives_after_a_later_one_of_its_process_changes_no_requests_in_flight() {
    let server = server();
    let mut store = store(&server);
    assert_eq!(admit(&mut store, 2, Flight { number: 2, ..flight("first", 0, 10) }), 2);
    assert_eq!(admit(&mut store, 1, Flight { number: 1, ..flight("first", 0, 10) }), 0);
    assert_eq!(admit(&mut store, 1, flight("other", 0, 10)), 0);
    assert_eq!(admit(&mut store, 0, Flight { number: 3, ..flight("first", 1, 10) }), 0);
    assert_eq!(admit(&mut store, 1, flight("other", 0, 10)), 1);
}

/// Another program may have written the entry, or a process of an earlier version, whose entries are shorter.
#[test]
fn entry_of_an_unknown_format_counts_no_requests_and_is_deleted() {
    let server = server();
    let mut store = store(&server);
    let now = store.now;
    for (entry, requests) in [
        (String::new(), 0),
        ("text".to_owned(), 0),
        (format!("1:{now}"), 0),
        (format!("1:{now}:0:10000000:7 text"), 0),
        (format!("1:{now}:0"), 1),
        (format!("1:{now}:0:10000000:7"), 1),
    ] {
        redis::cmd("HSET").arg("{a}:flight").arg("other").arg(&entry).exec(&mut store.connection).unwrap();
        for (wait, requests) in [(9, requests), (1, 0)] {
            store.now += wait * SECOND;
            assert_eq!(admit(&mut store, 2, flight("first", 0, 10)), 2 - requests, "{entry}, {wait}");
            let is_kept = redis::cmd("HEXISTS").arg("{a}:flight").arg("other").query(&mut store.connection);
            assert_eq!(is_kept, Ok(requests > 0), "{entry}");
        }
        store.now = now;
    }
}
