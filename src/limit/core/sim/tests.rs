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
    let start = std::time::Instant::now();
    let report = run(0..number);
    let speed = number as f64 * 60.0 / start.elapsed().as_secs_f64();
    println!("{number} scripts, {speed:.0} a minute: {report:?}");
    assert!(report.granted > 10 * number && report.refused > number && report.blocks > 0);
}
