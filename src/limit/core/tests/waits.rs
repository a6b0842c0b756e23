//! Tests that a paced window, the default limiter, states exact waits.

use super::{supply::Quotas, *};
use crate::random::Random;

/// A paced window with the default margin. Requests for one permit each have taken its permits at random times, and
/// others wait.
struct History {
    core: Core,
    /// The permits, without the queue.
    quotas: Quotas,
    now: u64,
    waiters: u64,
}

impl History {
    /// Returns the same history for the same seed.
    fn random(seed: u64) -> Self {
        let random = Random::seeded(seed);
        let limit = 2 + random.up_to(28) as u32;
        let burst = 1 + random.up_to(u64::from(limit) - 2) as u32;
        let window = Duration::from_millis(random.pick(&[100, 1_000, 60_000]));
        let quota = Quota::new(limit, window).unwrap().with_burst(burst).unwrap();
        let (mut core, mut quotas) = (core(PACED, &[quota]), Quotas::new(&[quota], PACED));
        let gap = random.pick(&[1, 2, 4]) * window.as_nanos() as u64 / u64::from(limit);
        let mut now = 0;
        for _ in 0..random.up_to(60) {
            now += if random.percent(40) { 0 } else { random.up_to(gap) };
            if core.takes(one(), now) {
                quotas.take(now, 1);
            }
        }
        let waiters = random.pick(&[0, 0, 1, 5, 40]);
        for _ in 0..waiters {
            if let Ok(Submitted::Granted(_)) = core.submit(one(), now) {
                quotas.take(now, 1);
            }
        }
        let waiters = core.snapshot(now).queued as u64;
        Self { core, quotas, now, waiters }
    }

    /// Grants one permit after the other. Returns when the request behind all waiters gets its own, and whether the log
    /// delays a grant.
    fn due(&mut self) -> (u64, bool) {
        let (mut at, mut has_gap) = (self.now, false);
        for _ in 0..=self.waiters {
            let paced = self.quotas.states[0].pace.as_ref().unwrap().due(at, 1);
            at = self.quotas.due(at, 1, 1);
            has_gap |= at > paced;
            self.quotas.take(at, 1);
        }
        (at, has_gap)
    }
}

/// Behind several waiters, the stated wait may be too short: by 1 ns for each waiter, or more if the log delays a
/// grant.
#[test]
fn refusal_of_a_paced_window_states_when_the_request_would_be_granted() {
    let mut exact = [0; 2];
    for seed in 0..3_000 {
        let mut history = History::random(seed);
        let (now, waiters) = (history.now, history.waiters);
        let Err(refusal) = history.core.submit(one().within(now, 0), now) else { continue };
        let stated = now + refusal.wait().unwrap().as_nanos() as u64;
        let (due, has_gap) = history.due();
        assert!(stated <= due, "seed {seed}, {waiters} waiters: {stated} is later than {due}");
        let is_close = stated + waiters.saturating_sub(1) >= due;
        assert!(is_close || waiters > 1 && has_gap, "seed {seed}, {waiters} waiters: {stated}, not {due}");
        if stated < due {
            continue;
        }
        exact[usize::from(waiters > 0)] += 1;
        // The same request without a bound.
        let mut core = History::random(seed).core;
        let ticket = core.queued(one(), now);
        let granted = core.serve_until(now, stated - 1);
        assert!(granted.iter().all(|(_, granted)| *granted != ticket), "seed {seed}: granted too early");
        let granted = core.serve_until(stated, stated);
        assert!(granted.contains(&(stated, ticket)), "seed {seed}: {granted:?} at {stated}");
    }
    assert!(exact.iter().all(|number| *number > 500), "{exact:?}");
}
