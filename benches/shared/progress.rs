use std::{
    fmt,
    io::{self, IsTerminal, Write},
    sync::Mutex,
    time::{Duration, Instant},
};

use super::now;

/// The pause between two lines of progress.
const PAUSE: Duration = Duration::from_secs(2);

/// The time when the previous line was printed.
static PRINTED: Mutex<Option<Instant>> = Mutex::new(None);

/// Prints to stderr which step of the bench starts now, at most once every 2 s. On a terminal, each line replaces the
/// previous line. Write errors are ignored.
pub fn progress(step: fmt::Arguments<'_>) {
    let Ok(mut printed) = PRINTED.lock() else { return };
    if printed.is_some_and(|printed| printed.elapsed() < PAUSE) {
        return;
    }
    let mut err = io::stderr();
    let _ = match err.is_terminal() {
        true => write!(err, "\r\x1b[2K{step}\r"),
        false => writeln!(err, "{step}"),
    };
    *printed = Some(now());
}
