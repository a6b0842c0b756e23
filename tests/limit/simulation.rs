//! The simulation of the core: random scripts of callers, pauses, quota changes and responses. After each event, it
//! checks the guarantees of the limiter.

use tower_outbound::test_util::limiter::{Action, Report, Script, Sim};

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
