use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use tokio::time::Instant;
use tower_outbound::limit::Snapshot;

/// Prints the progress of the run. On a terminal, prints every 100 ms and replaces the previous output. Otherwise
/// prints every second.
///
/// Returns only if writing to stdout fails.
pub(crate) async fn show(start: Instant, snapshot: impl Fn() -> Snapshot) -> io::Error {
    let mut out = io::stdout();
    let terminal = out.is_terminal();
    let mut ticks = tokio::time::interval(Duration::from_millis(if terminal { 100 } else { 1_000 }));
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Snapshot { granted, queued, available, .. } = snapshot();
        let seconds = start.elapsed().as_secs_f64();
        let line = format!("{seconds:>5.1} s  granted {granted}, queued {queued}, available {available}");
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
pub(crate) fn clear() -> io::Result<()> {
    let mut out = io::stdout();
    if out.is_terminal() { write!(out, "\r\x1b[2K") } else { writeln!(out) }
}
