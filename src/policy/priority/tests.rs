use proptest::prelude::*;

use super::*;
use Priority::{High, Low, Normal};

const HIGH: usize = High.rank();
const NORMAL: usize = Normal.rank();
const LOW: usize = Low.rank();

fn heads(costs: [u32; 3]) -> Heads {
    costs.map(NonZeroU32::new)
}

/// Grants `total` permits to first waiters of constant `costs`, from a bucket that holds `largest` permits and is
/// refilled by one at a time. A cost of 0 means that no request of the priority waits. Returns the permits that each
/// priority took.
fn run(shares: &mut Shares, costs: [u32; 3], largest: u64, total: u64) -> [u64; 3] {
    let (mut taken, mut available) = ([0; 3], 0_u64);
    for _ in 0..total {
        available = (available + 1).min(largest);
        while let Some(turn) = shares.next(&heads(costs), largest) {
            let cost = u64::from(costs[turn.rank]);
            if available < cost + turn.reserve {
                break;
            }
            available -= cost;
            taken[turn.rank] += cost;
            shares.grant(turn.rank, cost, &heads(costs), &heads(costs));
        }
    }
    taken
}

#[test]
fn each_lower_priority_gets_its_share_of_the_permits() {
    for (percent, costs, expected) in [
        (10, [1, 1, 1], [800, 100, 100]),
        (10, [1, 1, 0], [900, 100, 0]),
        (10, [1, 0, 1], [900, 0, 100]),
        (10, [0, 1, 1], [0, 900, 100]),
        (25, [1, 1, 1], [500, 250, 250]),
        (0, [1, 1, 1], [1_000, 0, 0]),
        (10, [1, 5, 3], [800, 100, 100]),
        (10, [4, 1, 1], [800, 100, 100]),
        (25, [10, 1, 10], [500, 250, 250]),
        (10, [0, 0, 1], [0, 0, 1_000]),
    ] {
        let mut shares = Shares::new();
        shares.set_percent(percent);
        let taken = run(&mut shares, costs, 10, 100_000).map(|taken| taken / 100);
        let is_close =
            taken.iter().zip(expected).all(|(taken, expected): (&u64, u64)| taken.abs_diff(expected) <= 2);
        assert!(is_close, "{percent} %, costs {costs:?}: {taken:?} of 1000 permits, expected {expected:?}");
    }
}

#[test]
fn shares_of_a_store_reserve_no_permits_for_a_costly_request() {
    let mut shares = Shares::new();
    shares.save_none();
    let (costs, mut taken) = (heads([1, 5, 0]), [0; 3]);
    for _ in 0..1_000 {
        let turn = shares.next(&costs, 10).unwrap();
        assert_eq!(turn.reserve, 0);
        let cost = u64::from(costs[turn.rank].unwrap().get());
        taken[turn.rank] += cost;
        shares.grant(turn.rank, cost, &costs, &costs);
    }
    assert!(taken[NORMAL] * 9 <= taken[HIGH] && taken[NORMAL] > taken[HIGH] / 10, "{taken:?}");
}

/// A single caller of the highest priority sends its next request only after the response to the last one, so the queue
/// contains no request of this priority at each of its grants.
#[test]
fn lower_priorities_get_their_shares_beside_a_caller_that_queues_again_after_each_grant() {
    for (percent, lower) in [(10, [1, 1]), (10, [1, 0]), (10, [0, 1]), (25, [1, 1]), (10, [3, 2])] {
        let (mut shares, mut taken, mut available) = (Shares::new(), [0; 3], 0);
        shares.set_percent(percent);
        let [others, all] = [0, 1].map(|high| heads([high, lower[0], lower[1]]));
        for _ in 0..10_000 {
            available += 1;
            // The caller has queued its next request before the refill, and not before a second grant.
            let mut before = all;
            while let Some(turn) = shares.next(&before, 10) {
                let cost = before[turn.rank].map_or(0, |cost| u64::from(cost.get()));
                if available < cost + turn.reserve {
                    break;
                }
                available -= cost;
                taken[turn.rank] += cost;
                let after = if turn.rank == HIGH { others } else { before };
                shares.grant(turn.rank, cost, &before, &after);
                before = after;
            }
        }
        for (rank, cost) in [NORMAL, LOW].into_iter().zip(lower).filter(|(_, cost)| *cost > 0) {
            let share = taken[rank] / 100;
            assert!(
                share + 1 >= u64::from(percent),
                "{percent} %, {lower:?}: rank {rank} cost {cost} took {taken:?}"
            );
        }
        assert!(taken[HIGH] > 0, "{taken:?}");
    }
}

#[test]
fn credit_is_lost_if_no_request_of_the_priority_waits() {
    let mut shares = Shares::new();
    run(&mut shares, [1, 0, 1], 10, 19);
    shares.grant(HIGH, 1, &heads([1, 0, 1]), &heads([1, 0, 0]));
    assert_eq!((shares.credit, shares.saved), ([0; 3], None));
}

#[test]
fn forecast_counts_higher_priorities_and_the_shares_of_lower_ones() {
    let shares = Shares::new();
    for (rank, own, wanted, total) in [
        (NORMAL, 5, [0, 4, 0], 5),
        (HIGH, 9, [0, 100, 0], 9),
        (HIGH, 9, [0, 0, 0], 9),
        (HIGH, 80, [0, 1_000, 1_000], 98),
        (HIGH, 80, [0, 3, 1_000], 92),
        (NORMAL, 2, [10, 1, 0], 12),
        // The waiter's share of 10 % reaches it before all requests of a higher priority are served.
        (NORMAL, 2, [1_000, 1, 0], 20),
        (LOW, 1, [3, 3, 0], 7),
        (LOW, 1, [30, 30, 0], 10),
    ] {
        assert_eq!(shares.total(rank, own, &wanted, 0), total, "rank {rank}, own {own}, wanted {wanted:?}");
    }
}

proptest! {
    /// Other requests of a high priority arrive in a pattern and wait alone. Then none arrives for a while, then a
    /// single one.
    #[test]
    fn single_high_request_waits_for_at_most_two_refills(
        percent in 0..=Shares::LARGEST,
        normal in 0..=10_u32,
        low in 1..=10_u32,
        pattern: u64,
        earlier in 0..200_u64,
        before in 0..200_u64,
    ) {
        let mut shares = Shares::new();
        shares.set_percent(percent);
        let (mut available, mut waited) = (0_u64, 0);
        let mut high = 0;
        for step in 0..earlier + before + 3 {
            let is_single = step >= earlier + before;
            let arrives = is_single || (step < earlier && pattern >> (step % 64) & 1 == 1);
            high = high.max(u32::from(arrives));
            available = (available + 1).min(10);
            waited += u64::from(high);
            while let Some(turn) = shares.next(&heads([high, normal, low]), 10) {
                let present = heads([high, normal, low]);
                let cost = present[turn.rank].map_or(0, |cost| u64::from(cost.get()));
                if available < cost + turn.reserve {
                    break;
                }
                available -= cost;
                if turn.rank == HIGH {
                    (high, waited) = (0, 0);
                }
                shares.grant(turn.rank, cost, &present, &heads([high, normal, low]));
            }
            prop_assert!(high == 0 || waited < 2, "not granted after {} refills", waited);
        }
    }
}
