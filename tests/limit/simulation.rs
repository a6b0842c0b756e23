//! The simulation of the core: random scripts of callers, pauses, quota changes and responses, and short scripts of
//! faults that they found. After each event, it checks the guarantees of the limiter.

use std::{num::NonZeroU32, time::Duration};

use tower_outbound::{
    Quota,
    limit::{Priority, Unit},
    test_util::limiter::{Action, Call, CoreSettings, Reply, Report, Rule, Script, Sim, Step},
};

const MS: u64 = 1_000_000;
const HOUR: u64 = 3_600_000 * MS;

const CALL: Call = Call {
    cost: NonZeroU32::MIN,
    priority: Priority::Normal,
    max_wait: None,
    deadline: None,
    max_queue: 1_000,
    poll: 0,
    is_always_late: false,
    ready: 0,
    network: 0,
    body: 0,
    reply: Reply::Accepts,
    tokens: (0, 0),
    settles_after: None,
};

/// Runs a script with exact timers. The times of its steps are in milliseconds.
fn run(rule: Rule, quotas: &[Quota], steps: &[(u64, Action)]) -> Report {
    let steps = steps.iter().map(|(at, action)| Step { at: at * MS, action: action.clone() }).collect();
    let settings = CoreSettings::new(rule);
    let script = Script { seed: 0, quotas: quotas.to_vec(), settings, lateness: 0, has_blocks: false, steps };
    Sim::new(&script).run().unwrap_or_else(|violation| panic!("{violation:?}\n{script}"))
}

/// A waiter that is woken, and is polled this many milliseconds later.
fn late(poll: u64) -> Action {
    Action::Call(Call { poll: poll * MS, is_always_late: true, ..CALL })
}

/// A call with a deadline in milliseconds.
fn until(deadline: u64) -> Action {
    Action::Call(Call { deadline: Some(deadline * MS), ..CALL })
}

/// Runs a token bucket that grants one permit per 100 ms, and backdates a grant by at most 125 ms. Permits expire if
/// they are not collected within 125 ms. Call 0 takes the first permit.
fn run_bucket(steps: &[(u64, Action)]) -> Report {
    let quota = Quota::new(16, Duration::from_secs(1)).unwrap().with_burst(1).unwrap();
    let quota = quota.with_margin(Duration::from_millis(500)).unwrap();
    run(Rule::TokenBucket, &[quota], &[&[(0, Action::Call(CALL))], steps].concat())
}

/// Call 1 returns at 330 ms. Call 2 returns at 340 ms, and the last call is refused just before.
#[test]
fn stated_wait_is_not_checked_if_a_waiter_returns_in_the_same_event() {
    let report = run_bucket(&[(0, late(230)), (0, late(140)), (0, Action::Call(CALL)), (0, until(450))]);
    assert_eq!((report.granted, report.refused, report.exact_waits), (4, 1, 0));
}

/// The permit of a queued request has expired because of a pause. Its tokens return when it is collected.
#[test]
fn stated_wait_is_not_checked_if_an_expired_permit_returns_its_tokens() {
    let tokens = Quota::bucket(1_000, 1_000, Duration::from_secs(1)).unwrap().without_margin();
    let call = |tokens| Call { tokens: (tokens, tokens), ..CALL };
    let steps = [
        (0, Action::Call(call(1_000))),
        (0, Action::Call(Call { poll: 100 * MS, ..call(500) })),
        (510, Action::Pause(100 * MS)),
        (520, Action::Call(Call { max_wait: Some(0), ..call(500) })),
    ];
    let report = run(Rule::TokenBucket, &[tokens.with_unit(Unit::Tokens).unwrap()], &steps);
    assert_eq!((report.refused, report.exact_waits), (1, 0));
}

/// A refusal states the end of a long pause. The waiters leave one by one before it.
#[test]
fn probes_of_a_long_pause_leave_before_its_stated_end() {
    let quota = Quota::new(10, Duration::from_secs(1)).unwrap();
    let steps = [
        (0, Action::Call(Call { reply: Reply::Throttles(3 * HOUR), ..CALL })),
        (1_000, Action::Call(CALL)),
        (1_000, Action::Call(Call { max_wait: Some(0), ..CALL })),
    ];
    let report = run(Rule::TokenBucket, &[quota], &steps);
    assert_eq!((report.granted, report.refused, report.exact_waits), (2, 1, 0));
}

/// The environment variable `SIM_SCRIPTS` is the number of scripts. 5,000 by default.
#[test]
fn random_scripts_violate_no_guarantee() {
    let number = std::env::var("SIM_SCRIPTS").map_or(5_000, |number| number.parse().unwrap());
    let (mut sum, mut limited) = (Report::default(), 0);
    for seed in 0..number {
        let script = Script::random(seed);
        let has_drop = script.steps.iter().any(|step| matches!(step.action, Action::Drop(_)));
        limited += u64::from(has_drop && script.settings.max_in_flight.is_some());
        match Sim::new(&script).run() {
            Ok(report) => sum.add(&report),
            Err(_) => {
                let script = script.shrink(|shorter| Sim::new(shorter).run().is_err());
                panic!("{:?}\n{script}", Sim::new(&script).run().unwrap_err());
            }
        }
    }
    println!("{number} scripts, {limited} with cancelled calls and a limit of requests in flight: {sum:?}");
    assert!(sum.granted > 10 * number && sum.refused > number, "{sum:?}");
    assert!(
        10 * sum.expired > number && sum.exact_waits > number / 10 && sum.blocks > number / 10,
        "{sum:?}"
    );
    assert!(12 * limited > number, "{limited} of {number}");
}
