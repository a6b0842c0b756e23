//! Runs the load test in a child process, and stops and continues the child with SIGSTOP and SIGCONT. The clocks go on
//! while the child is stopped, as in a paused container or on a sleeping laptop.

use std::{
    env,
    process::{Child, Command},
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::sleep,
    time::Duration,
};

use tokio::time::Instant;

use super::{history::History, log_scanner, phases, rng::Rng};

/// The maximum number of bytes that the clients may still have allocated at the end, for any duration of the test.
const MAX_REMAINING_BYTES: i64 = 64 << 10;

/// Runs the load test in this process. The warm-up allocates the memory that lives as long as the process.
pub(crate) fn run(seed: u64, duration: Duration) {
    log_scanner::install();
    let warm_up = duration / 4;
    for (name, part) in [("warm-up", warm_up), ("soak", duration - warm_up)] {
        let history = Arc::new(History::default());
        let remaining = phases::run(seed, part, &history);
        println!(
            "{name}, seed {seed}, {part:?}: {} calls, {} log records, {remaining} bytes still allocated",
            history.calls_started.load(Relaxed),
            log_scanner::RECORDS.swap(0, Relaxed),
        );
        println!("  {:?}", history.outcomes.lock().unwrap());
        let mut violations = history.violations();
        if name == "soak" && remaining.abs() > MAX_REMAINING_BYTES {
            violations.push(format!("{remaining} bytes still allocated"));
        }
        assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
    }
}

/// Kills the child when dropped.
struct ChildGuard(Child);

impl ChildGuard {
    /// Sends the signal with the shell's `kill`, because std cannot send SIGSTOP and SIGCONT.
    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().is_ok_and(|status| status.success()));
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the test `soak::child_process_runs_the_load_test` in a child process, and stops the child at random times.
pub(crate) fn run_in_child(seed: u64, duration: Duration) {
    println!("SOAK_SEED={seed} SOAK_SECONDS={}", duration.as_secs());
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "soak::child_process_runs_the_load_test", "--ignored", "--nocapture"])
        .env("SOAK_SEED", seed.to_string())
        .env("SOAK_SECONDS", duration.as_secs().to_string())
        .spawn()
        .unwrap();
    let mut child = ChildGuard(child);
    let time_limit = Instant::now() + duration + Duration::from_secs(1_200);
    let mut stops = 0;
    let status = loop {
        let mut rng = Rng::new(seed, "stop", stops);
        sleep(rng.millis(200, 1_500));
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < time_limit, "the child process does not end");
        if cfg!(unix) {
            stops += 1;
            child.signal("STOP");
            sleep(rng.millis(5, 300));
            child.signal("CONT");
        }
    };
    println!("stopped {stops} times");
    assert!(status.success(), "seed {seed}: {status}");
}
