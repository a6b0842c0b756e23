use std::{
    io::{self, IsTerminal, Write},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::targets::Target;

/// Prints the progress of the calls. On a terminal, prints every 200 ms and replaces the previous output. Otherwise
/// prints every 2 s.
///
/// Returns only if writing to stdout fails.
pub(crate) async fn show(targets: &[Arc<Target>], started: Instant) -> io::Error {
    let mut out = io::stdout();
    let terminal = out.is_terminal();
    let mut ticks = tokio::time::interval(Duration::from_millis(if terminal { 200 } else { 2000 }));
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let calls: Vec<_> =
            targets.iter().map(|target| format!("{} {}", target.name, target.finished_count())).collect();
        let line = format!("{:>3} s  calls: {}", started.elapsed().as_secs(), calls.join(", "));
        let written = match terminal {
            true => write!(out, "\r\x1b[2K{line}").and_then(|()| out.flush()),
            false => writeln!(out, "{line}"),
        };
        if let Err(error) = written {
            return error;
        }
    }
}

/// Erases the progress output from a terminal.
pub(crate) fn clear(out: &mut io::Stdout) -> io::Result<()> {
    if out.is_terminal() { write!(out, "\r\x1b[2K") } else { writeln!(out) }
}
