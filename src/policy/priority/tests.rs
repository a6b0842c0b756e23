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
        let mut shares = Shares::default();
        shares.set_percent(percent);
        let taken = run(&mut shares, costs, 10, 100_000).map(|taken| taken / 100);
        let is_close =
            taken.iter().zip(expected).all(|(taken, expected): (&u64, u64)| taken.abs_diff(expected) <= 2);
        assert!(is_close, "{percent} %, costs {costs:?}: {taken:?} of 1000 permits, expected {expected:?}");
    }
}

#[test]
fn credit_is_lost_if_no_request_of_the_priority_waits() {
    let mut shares = Shares::default();
    run(&mut shares, [1, 0, 1], 10, 19);
    shares.grant(HIGH, 1, &heads([1, 0, 1]), &heads([1, 0, 0]));
    assert_eq!((shares.credit, shares.saved), ([0; 3], None));
}

#[test]
fn forecast_counts_higher_priorities_and_the_shares_of_lower_ones() {
    let shares = Shares::default();
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
        assert_eq!(shares.total(rank, own, &wanted), total, "rank {rank}, own {own}, wanted {wanted:?}");
    }
}

proptest! {
    /// A single request with a high priority arrives while others wait. The others take at most one permit before it.
    #[test]
    fn single_high_request_waits_for_at_most_two_permits(
        percent in 0..=Shares::LARGEST,
        normal in 0..=10_u32,
        low in 1..=10_u32,
        before in 0..200_u64,
        earlier in 0..200_u64,
    ) {
        let mut shares = Shares::default();
        shares.set_percent(percent);
        let mut available = 0_u64;
        // Requests with a high priority wait first, then none waits, then a single one.
        let mut refills = 0;
        for step in 0..earlier + before + 3 {
            let is_single = step >= earlier + before;
            let costs = [u32::from(step < earlier || is_single), normal, low];
            available = (available + 1).min(10);
            refills += u32::from(is_single);
            while let Some(turn) = shares.next(&heads(costs), 10) {
                let cost = u64::from(costs[turn.rank]);
                if available < cost + turn.reserve {
                    break;
                }
                if is_single && turn.rank == HIGH {
                    prop_assert!(refills <= 2, "granted after {} refills", refills);
                    return Ok(());
                }
                available -= cost;
                shares.grant(turn.rank, cost, &heads(costs), &heads(costs));
            }
        }
        prop_assert!(false, "not granted");
    }
}
