//! Formats the table and the charts.

use std::{fmt::Write, time::Duration};

use crate::{
    arguments::Arguments,
    drawing,
    figures::Run,
    simulation::{callers, idle},
};

/// The number of chart columns. With the default number of windows, a window has as many columns as a label.
const COLUMNS: usize = 65;
/// The number of chart columns between two labels of the time axis.
const LABEL_COLUMNS: usize = 20;
/// A chart has this number of rows up to the limit, and at most as many above it.
const ROWS: usize = 2;
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns the whole output of the program.
pub(crate) fn report(arguments: &Arguments, runs: &[Run]) -> String {
    let quota = arguments.quota;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{quota}\n{}\n", scenario(arguments));
    table(&mut text, arguments, runs);
    let (limit, window) = (quota.limit(), quota.window());
    let _ = writeln!(text, "\nrequests in the last {window:?}; the line is the limit of {limit}");
    for run in runs {
        chart(&mut text, arguments, run);
    }
    axis(&mut text, arguments);
    let _ = writeln!(text, "\nplot: {}", arguments.svg.display());
    text
}

/// Describes the server and the load.
pub(crate) fn scenario(arguments: &Arguments) -> String {
    let Arguments { quota, server_name, .. } = arguments;
    let (callers, idle, end) = (callers(*quota), idle(*quota), arguments.length());
    format!("{server_name}; {callers} callers always have a request to send, from {idle:?} to {end:?}")
}

fn table(text: &mut String, arguments: &Arguments, runs: &[Run]) {
    let (limit, window) = (arguments.quota.limit(), arguments.quota.window());
    let _ = writeln!(text, "{:>36} {:>11} {:>8}  wait in the limiter", "rejected", "most in", "quota");
    let most_in = format!("{window:?}");
    let _ = writeln!(
        text,
        "strategy     sent  accepted    by 429 {most_in:>11} {:>8} {:>7} {:>6} {:>7}",
        "used", "median", "p95", "longest"
    );
    for run in runs {
        let [median, p95, longest] = [50, 95, 100].map(|percent| short(run.wait(percent)));
        let (name, sent, rejected) = (run.strategy.name, run.sent, run.rejected());
        let (accepted, most) = (sent - rejected, format!("{}/{limit}", run.most()));
        let used = accepted as f64 * 100.0 / f64::from(arguments.requests());
        let _ = writeln!(
            text,
            "{name:<8} {sent:>8} {accepted:>9} {rejected:>9} {most:>11} {used:>6.1} % {median:>7} {p95:>6} {longest:>7}"
        );
    }
}

fn short(duration: Duration) -> String {
    if duration.is_zero() { "0s".to_owned() } else { format!("{duration:.1?}") }
}

/// Draws a bar for each column. The line between two rows is the limit.
fn chart(text: &mut String, arguments: &Arguments, run: &Run) {
    let limit = arguments.quota.limit() as usize;
    let columns = run.columns.chunks(drawing::COLUMNS / COLUMNS);
    let most = columns.map(|part| part.iter().map(|column| column.most).max().unwrap_or(0));
    let levels: Vec<_> = most.map(|most| level(most, limit)).collect();
    let _ = writeln!(text, "\n{:<10}{}", run.strategy.name, run.strategy.description);
    let rows = levels.iter().max().map_or(0, |level| level.div_ceil(8)).clamp(ROWS + 1, ROWS * 2);
    for row in (0..rows).rev() {
        let label = match row {
            ROWS => limit.to_string(),
            _ if row + 1 == rows => run.most().to_string(),
            _ => String::new(),
        };
        let bars = levels.iter().map(|level| match level.saturating_sub(row * 8) {
            0 if row == ROWS => '_',
            filled => BLOCKS[filled.min(8)],
        });
        let bars: String = bars.collect();
        let _ = writeln!(text, "{label:>8}  {}", bars.trim_end());
    }
}

/// Returns the height of a bar in eighths of a row. A bar reaches the limit only if its value does.
fn level(value: usize, limit: usize) -> usize {
    let height = ROWS * 8;
    match value.checked_sub(limit) {
        None => (value * height / limit).max(value.min(1)),
        Some(excess) => height + (excess * height).div_ceil(limit),
    }
}

fn axis(text: &mut String, arguments: &Arguments) {
    let labels = (0..COLUMNS).step_by(LABEL_COLUMNS).map(|column| {
        let seconds = arguments.length().as_secs_f64() * column as f64 / COLUMNS as f64;
        format!("{:<LABEL_COLUMNS$}", format!("{}s", (seconds * 1e3).round() / 1e3))
    });
    let _ = writeln!(text, "          {}", labels.collect::<String>().trim_end());
}
