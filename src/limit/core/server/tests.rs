//! Tests of the server limits.

use super::{remaining::SHIFT, *};

fn gate(left: u64, until: u64) -> Gate {
    Gate {
        policy: left,
        name: QuotaName::of_header(""),
        left,
        until,
        shut: false,
        peak: left,
        forecast_until: until,
        is_estimate: false,
        reported_at: 0,
        ignored: 0,
    }
}

/// The response to a request that was sent at this time.
fn sent_at(sent_at: u64) -> Reporter {
    Reporter { is_accepted: true, cost: 1, sent_at, in_flight: 0 }
}

fn stored(limits: &ServerLimits) -> Vec<(u64, u64)> {
    limits.gates.iter().map(|gate| (gate.left, gate.until)).collect()
}

#[test]
fn full_list_of_server_quotas_keeps_those_with_the_fewest_permits() {
    let mut limits = ServerLimits::new(true);
    assert!(!limits.any());
    assert!((1..=8).all(|left| limits.add(gate(left, 100))));
    for (new, taken) in
        [(gate(9, 900), false), (gate(8, 100), false), (gate(8, 99), false), (gate(8, 200), true)]
    {
        assert_eq!(limits.add(new), taken);
    }
    assert_eq!(
        stored(&limits).pop(),
        Some((8, 200)),
        "keeps the gate that ends later if both have equal permits"
    );
    assert!(limits.add(gate(3, 50)));
    let mut narrow = stored(&limits);
    narrow.sort_unstable();
    assert_eq!(narrow, [(1, 100), (2, 100), (3, 50), (3, 100), (4, 100), (5, 100), (6, 100), (7, 100)]);
}

#[test]
fn forecast_changes_if_fewer_permits_remain_or_the_reset_moves_by_a_second() {
    let mut known = gate(5, SHIFT);
    assert!(!known.update(gate(5, SHIFT), sent_at(9), 0), "same report again");
    assert!(!known.update(gate(6, 9 * SHIFT), sent_at(9), 0), "older report with more permits");
    assert!(!known.update(gate(5, 2 * SHIFT - 1), sent_at(9), 0), "end moves by less than a second");
    assert!(known.update(gate(5, 2 * SHIFT), sent_at(9), 0));
    assert!(!known.update(gate(5, 2 * SHIFT), sent_at(9), 0), "end is already known");
    assert!(known.update(gate(4, SHIFT), sent_at(9), 0));
    assert_eq!((known.left, known.until, known.peak), (4, 2 * SHIFT, 6));
    assert!(
        known.update(gate(7, 3 * SHIFT), sent_at(9), 2 * SHIFT),
        "any report replaces a gate that has ended"
    );
    assert_eq!((known.left, known.until), (7, 3 * SHIFT));
}

#[test]
fn permits_above_the_reported_number_are_forecast_from_the_reset() {
    let mut limits = ServerLimits::new(true);
    limits.add(gate(3, 100));
    // One permit is available for each unit of time.
    let forecast = |total| limits.forecast(|start, permits| start + permits, 0, total);
    assert_eq!([3, 4, 10].map(forecast), [3, 101, 107]);
}

#[test]
fn server_quota_without_permits_stays_shut_until_its_reset() {
    // Fills the list with eight gates that have no permits but are not shut. A ninth gate, which is shut and ends
    // later, updates one of them.
    let mut limits = ServerLimits::new(true);
    assert!((1..=8).all(|policy| limits.add(Gate { policy, ..gate(0, 100) })));
    assert!(!limits.is_shut(0, 50));
    assert!(limits.add(Gate { shut: true, ..gate(0, 200) }));
    assert!(limits.is_shut(0, 50) && limits.is_shut(0, 199) && !limits.is_shut(0, 200));

    let mut known = gate(0, 100);
    for (shut, then) in [(false, false), (true, true), (true, true), (false, true)] {
        known.update(Gate { shut, ..gate(0, 100) }, sent_at(9), 50);
        assert_eq!(known.shut, then);
    }
}

#[test]
fn pause_is_replaced_only_by_a_longer_pause() {
    let mut limits = ServerLimits::new(true);
    assert!(!limits.pause(10, 10) && limits.pause(11, 10) && !limits.pause(11, 10) && !limits.pause(5, 0));
    assert_eq!((limits.pause.end(10), limits.pause.end(11)), (Some(11), None));
    assert!(limits.tidy(10) && !limits.tidy(11));
    limits.add(gate(0, 20));
    assert!(limits.tidy(19) && !limits.tidy(20));
}

#[test]
fn slow_start_begins_when_the_last_limit_ends() {
    for (gate_ends, pause_ends) in [(50, 100), (100, 100)] {
        let mut limits = ServerLimits::new(false);
        limits.pause(pause_ends, 0);
        limits.add(gate(20, gate_ends));
        limits.tidy(gate_ends);
        assert_eq!(
            limits.left(gate_ends),
            Some(u64::from(gate_ends == pause_ends)),
            "one permit after the pause"
        );
    }
    let mut limits = ServerLimits::new(false);
    limits.pause(50, 0);
    limits.add(gate(20, 100));
    limits.tidy(100);
    assert_eq!(limits.left(100), Some(20));
}

#[test]
fn newer_report_of_more_permits_replaces_a_gate_without_a_stated_reset() {
    let report = |left, now, is_estimate| Gate { reported_at: now, is_estimate, ..gate(left, now + 100) };
    for (is_estimate, expected) in [(false, (4, 100)), (true, (96, 130))] {
        let mut known = report(5, 0, is_estimate);
        assert!(known.update(report(4, 10, is_estimate), sent_at(0), 10));
        // Requests that were sent before the last report arrived.
        for left in [98, 97] {
            assert!(!known.update(report(left, 20, is_estimate), sent_at(10), 20));
        }
        assert_eq!(known.left, 4);
        // The server may have counted those two requests after this one.
        known.update(report(98, 30, is_estimate), sent_at(11), 30);
        assert_eq!((known.left, if is_estimate { known.until } else { 100 }), expected);
        known.update(report(97, 40, is_estimate), sent_at(29), 40);
        assert_eq!(known.left, expected.0, "a report from before the last one");
    }
}
