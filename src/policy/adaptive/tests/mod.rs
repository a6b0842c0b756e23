mod pauses;
mod rates;
mod server_quotas;
mod units;

use proptest::prelude::*;

use super::*;
use crate::policy::{Remaining, head_of, remaining};

const MILLI: u64 = SECOND / 1_000;

fn progress(accepted: u64, in_flight: u64) -> Progress {
    Progress { accepted, in_flight, each: 1 }
}

fn response(acceptance: Acceptance, at: u64) -> Observation<'static> {
    Observation {
        acceptance,
        granted_at: at,
        sent_at: at,
        requested_pause: None,
        least_pause: 0,
        remaining: &[],
    }
}

/// Parses the headers of a quota with `limit` permits per `window` seconds, of which `left` remain.
fn quota(limit: u64, window: u64, left: u64) -> Vec<Remaining> {
    named_quota("a", limit, window, left)
}

fn named_quota(name: &str, limit: u64, window: u64, left: u64) -> Vec<Remaining> {
    let item = format!("\"{name}\";r={left};t={window}");
    let policy = format!("\"{name}\";q={limit};w={window}");
    let headers = head_of([("ratelimit", item.as_bytes()), ("ratelimit-policy", policy.as_bytes())]);
    remaining(&headers, &[], || panic!("the clock was read"))
}

/// Returns a learner that accepted 100 requests in the first second, and then received a throttled response.
fn throttled() -> Learner {
    let mut learner = Learner::new(f64::INFINITY);
    learner.grant(1, progress(0, 0), 0);
    let pause = learner.observe(&response(Acceptance::Throttled, SECOND - 1), progress(100, 1), SECOND);
    assert_eq!(pause, Some(SECOND + FIRST_WAIT));
    learner
}

/// Returns the learner of [`throttled`] after its probe was accepted at 2 s. The rate is then 50 per second.
fn reopened() -> Learner {
    let mut learner = throttled();
    learner.grant(1, progress(100, 0), SECOND * 3 / 2);
    learner.observe(&response(Acceptance::Accepted, SECOND * 3 / 2), progress(100, 0), 2 * SECOND);
    assert_eq!(learner.rate, Some(50.0));
    learner
}

/// Completes a request with this kind of response and the next probe with an accepted one. Returns the pause's end.
fn pause_once(learner: &mut Learner, acceptance: Acceptance, accepted: u64, now: u64) -> Option<u64> {
    let pause = learner.observe(&response(acceptance, now), progress(accepted, 1), now);
    learner.grant(1, progress(accepted, 0), now + 1);
    learner.observe(&response(Acceptance::Accepted, now + 1), progress(accepted, 0), now + 1);
    pause
}

/// The quotas that a server reports in these headers.
fn reported(fields: &[(&'static str, &[u8])]) -> Vec<Remaining> {
    remaining(&head_of(fields.iter().copied()), &[], || panic!("the clock was read"))
}

/// Returns the rate after an accepted response with each list of quotas.
fn rate_after(responses: &[Vec<Remaining>]) -> Option<f64> {
    let mut learner = Learner::new(f64::INFINITY);
    for remaining in responses {
        learner.observe(&Observation { remaining, ..response(Acceptance::Accepted, 0) }, progress(1, 0), 0);
    }
    learner.rate.map(f64::round)
}

/// Takes and ends a request at each of these times, and returns the rate after the last one.
fn serve(learner: &mut Learner, accepted: &mut u64, times: impl Iterator<Item = u64>) -> f64 {
    for now in times {
        let now = learner.due(now, 1, 1);
        learner.advance(progress(*accepted, 0), 1, now);
        learner.grant(1, progress(*accepted, 0), now);
        *accepted += 1;
    }
    learner.rate.unwrap()
}

/// Returns a learner whose server accepted 100 requests in the first second and then blocked for 409 s.
fn blocked() -> (Learner, u64) {
    let mut learner = throttled();
    let mut now = SECOND + FIRST_WAIT;
    while now < 300 * SECOND {
        learner.grant(1, progress(100, 0), now);
        now = learner.observe(&response(Acceptance::Throttled, now), progress(100, 1), now).unwrap();
    }
    learner.grant(1, progress(100, 0), now);
    learner.observe(&response(Acceptance::Accepted, now), progress(101, 0), now);
    (learner, now)
}

#[derive(Debug, Clone)]
enum Step {
    Grant(u32),
    Respond { acceptance: Acceptance, age: u64, pause: Option<u64>, headers: Option<(u64, u64, u64)> },
    Lose(bool),
    Resume,
    Ceiling(f64),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let acceptance = prop_oneof![
        4 => Just(Acceptance::Accepted), 1 => Just(Acceptance::Throttled), 1 => Just(Acceptance::Unavailable)
    ];
    let number = || prop_oneof![0..200_u64, any::<u64>()];
    let headers = prop::option::of((number(), number(), number()));
    let response = (acceptance, number(), prop::option::of(number()), headers)
        .prop_map(|(acceptance, age, pause, headers)| Step::Respond { acceptance, age, pause, headers });
    let step = prop_oneof![
        6 => any::<u32>().prop_map(|cost| Step::Grant(cost.max(1))),
        6 => response,
        1 => any::<bool>().prop_map(Step::Lose),
        1 => Just(Step::Resume),
        1 => (1..1_000_u32).prop_map(|rate| Step::Ceiling(f64::from(rate))),
    ];
    let time = prop_oneof![0..2 * SECOND, any::<u64>()];
    prop::collection::vec((time, step), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn learned_rate_stays_between_its_bounds_after_any_sequence(steps in steps()) {
        let (mut learner, mut ceiling) = (Learner::new(f64::INFINITY), f64::INFINITY);
        let (mut now, mut accepted) = (0_u64, 0_u64);
        for (time, step) in steps {
            now = now.saturating_add(time);
            let state = progress(accepted, time % 8);
            learner.advance(state, 1, now);
            match step {
                Step::Grant(cost) => learner.grant(cost, state, now),
                Step::Respond { acceptance, age, pause, headers } => {
                    accepted += u64::from(acceptance == Acceptance::Accepted);
                    let headers = headers.map(|(limit, window, left)| quota(limit, window, left));
                    let at = now.saturating_sub(age);
                    let observation = Observation {
                        acceptance, granted_at: at, sent_at: at, requested_pause: pause, least_pause: 0,
                        remaining: headers.as_deref().unwrap_or_default(),
                    };
                    let until = learner.observe(&observation, progress(accepted, 0), now);
                    prop_assert!(until.is_none_or(|until| until >= now));
                    let requested = until.filter(|_| pause.is_some());
                    prop_assert!(requested.is_none_or(|until| until >= now.saturating_add(pause.unwrap())));
                }
                Step::Lose(was_sent) => drop(learner.lose(now, was_sent)),
                Step::Resume => learner.resume(now),
                Step::Ceiling(rate) => {
                    ceiling = rate;
                    learner.set_ceiling(rate);
                }
            }
            if let Some(rate) = learner.rate {
                prop_assert!(LOWEST.min(ceiling) <= rate && rate <= ceiling.min(HIGHEST), "{rate} of {ceiling}");
            }
            prop_assert!(learner.due(now, 1, 1) >= now && learner.due(now, 5, 2) >= now);
            learner.available(now);
        }
    }
}
