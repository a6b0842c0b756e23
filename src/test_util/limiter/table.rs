//! Writes a script as a table.

use std::fmt;

use super::script::{Action, MS, Reply, Script};

/// Writes a duration in nanoseconds as milliseconds.
struct Millis(u64);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} ms", self.0 / MS, self.0 % MS)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {:?}, blocks: {}", self.seed, self.settings, self.has_blocks)?;
        for quota in &self.quotas {
            writeln!(f, "quota {quota:#}")?;
        }
        writeln!(f, "timers late by up to {}", Millis(self.lateness))?;
        writeln!(f, "{:>18} | action", "at")?;
        let mut calls = 0;
        for step in &self.steps {
            write!(f, "{:>18} | ", Millis(step.at).to_string())?;
            match &step.action {
                Action::Call(call) => {
                    write!(f, "call {calls}: cost {}, {:?}", call.cost, call.priority)?;
                    for (name, value) in [
                        ("max_wait", call.max_wait),
                        ("deadline", call.deadline),
                        ("poll", Some(call.poll).filter(|poll| *poll > 0)),
                        ("ready", Some(call.ready).filter(|ready| *ready > 0)),
                        ("network", Some(call.network).filter(|network| *network > 0)),
                        ("body", Some(call.body).filter(|body| *body > 0)),
                    ] {
                        value.map_or(Ok(()), |value| write!(f, ", {name} {}", Millis(value)))?;
                    }
                    if call.max_queue < 1_000 {
                        write!(f, ", max_queue {}", call.max_queue)?;
                    }
                    if call.tokens != (0, 0) {
                        let (estimate, actual) = call.tokens;
                        write!(f, ", tokens {estimate} -> {actual}")?;
                        let after = call.settles_after.map(Millis);
                        after.map_or(Ok(()), |after| write!(f, " after {after}"))?;
                    }
                    if call.reply != Reply::Accepts {
                        write!(f, ", {:?}", call.reply)?;
                    }
                    writeln!(f)?;
                    calls += 1;
                }
                other => writeln!(f, "{other:?}")?,
            }
        }
        Ok(())
    }
}
