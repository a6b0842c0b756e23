use super::*;

/// Runs the scripts of these seeds. Panics with the table of a script that violates a guarantee.
fn run(seeds: std::ops::Range<u64>) -> Report {
    let mut sum = Report::default();
    for seed in seeds {
        let script = Script::random(seed);
        match Sim::new(&script).run() {
            Ok(report) => sum.add(&report),
            Err(_) => {
                let script = script.shrink(|shorter| Sim::new(shorter).run().is_err());
                panic!("{}\n{script}", Sim::new(&script).run().unwrap_err().0);
            }
        }
    }
    sum
}

#[test]
fn random_scripts_violate_no_guarantee() {
    let number = std::env::var("SIM_SCRIPTS").ok().and_then(|text| text.parse().ok()).unwrap_or(5_000);
    let report = run(0..number);
    println!("{number} scripts: {report:?}");
    assert!(report.granted > 10 * number && report.refused > number && report.blocks > 0);
}
