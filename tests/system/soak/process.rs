//! The process that the soak runs in, and the one that stops it: with SIGSTOP its clocks go on and it does not, as in a
//! container that is frozen or a laptop that is closed.

use std::{
    env,
    process::{Child, Command},
    sync::atomic::Ordering::Relaxed,
    thread::sleep,
    time::Duration,
};

use tokio::time::Instant;

use super::{checks, dice::Dice, ledger::Ledger, listener, round};

/// Most that may be left of the clients' memory, whatever the length of the soak.
const LEFT: i64 = 64 << 10;

pub(crate) fn child(seed: u64, lasting: Duration) {
    listener::install();
    let warm_up = lasting / 4;
    for (name, part) in [("warm-up", warm_up), ("soak", lasting - warm_up)] {
        let ledger = Ledger::new();
        let left = round::run(seed, part, &ledger);
        println!(
            "{name}, seed {seed}, {part:?}: {} calls, {} records of the log, {left} bytes left",
            ledger.started.load(Relaxed),
            listener::RECORDS.swap(0, Relaxed),
        );
        println!("  {:?}", ledger.ends.lock().unwrap());
        println!("  bodies {:?}", ledger.bodies.lock().unwrap());
        println!("  servers {:?}", ledger.faults.lock().unwrap());
        let mut wrongs = checks::all(&ledger);
        if name == "soak" && left.abs() > LEFT {
            wrongs.push(format!("{left} bytes left"));
        }
        assert!(wrongs.is_empty(), "{} things are wrong:\n{}", wrongs.len(), wrongs.join("\n"));
    }
}

/// Ended with its parent.
struct Stopped(Child);

impl Stopped {
    /// The shell's own `kill`: there is no such call in std.
    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().is_ok_and(|status| status.success()));
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(seed: u64, lasting: Duration) {
    println!("SOAK_SEED={seed} SOAK_SECONDS={}", lasting.as_secs());
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "soak::child", "--ignored", "--nocapture"])
        .env("SOAK_SEED", seed.to_string())
        .env("SOAK_SECONDS", lasting.as_secs().to_string())
        .spawn()
        .unwrap();
    let mut child = Stopped(child);
    let end = Instant::now() + lasting + Duration::from_secs(1_200);
    let mut stops = 0;
    let status = loop {
        let mut dice = Dice::about(seed, "stop", stops);
        sleep(dice.millis(200, 1_500));
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < end, "the soak does not end");
        if cfg!(unix) {
            stops += 1;
            child.signal("STOP");
            sleep(dice.millis(5, 300));
            child.signal("CONT");
        }
    };
    println!("stopped {stops} times");
    assert!(status.success(), "seed {seed}: {status}");
}
