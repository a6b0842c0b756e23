//! Formats the table and the charts.

use std::{fmt::Write, time::Duration};

use crate::{
    arguments::Arguments,
    figures::Summary,
    simulation::{LOAD_WINDOWS, Run, callers, idle, length},
};

/// The number of chart columns per window. The idle time before the load takes a quarter of a window.
const WINDOW_COLUMNS: usize = 20;
const COLUMNS: usize = WINDOW_COLUMNS / 4 + WINDOW_COLUMNS * LOAD_WINDOWS as usize;
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
    let (callers, idle, end) = (callers(*quota), idle(*quota), length(*quota));
    format!("{server_name}; {callers} callers always have a request to send, from {idle:?} to {end:?}")
}

fn table(text: &mut String, arguments: &Arguments, runs: &[Run]) {
    let (limit, window) = (arguments.quota.limit(), arguments.quota.window());
    let _ = writeln!(text, "{:>34} {:>11} {:>8}  wait in the limiter", "rejected", "most in", "quota");
    let most_in = format!("{window:?}");
    let _ = writeln!(
        text,
        "strategy   sent  accepted    by 429 {most_in:>11} {:>8} {:>7} {:>6} {:>7}",
        "used", "median", "p95", "longest"
    );
    for run in runs {
        let Summary { sent, accepted, most, used, waits } = run.summary(arguments.quota);
        let [median, p95, longest] = waits.map(short);
        let (name, rejected, most) = (run.strategy.name, sent - accepted, format!("{most}/{limit}"));
        let _ = writeln!(
            text,
            "{name:<8} {sent:>6} {accepted:>9} {rejected:>9} {most:>11} {used:>6.1} % {median:>7} {p95:>6} {longest:>7}"
        );
    }
}

fn short(duration: Duration) -> String {
    if duration.is_zero() { "0s".to_owned() } else { format!("{duration:.1?}") }
}

/// Draws a bar for each column. The line between two rows is the limit.
fn chart(text: &mut String, arguments: &Arguments, run: &Run) {
    let limit = arguments.quota.limit() as usize;
    let columns = run.columns(arguments.quota, COLUMNS);
    let most = columns.iter().map(|column| column.most).max().unwrap_or(0);
    let levels: Vec<_> = columns.iter().map(|column| level(column.most, limit)).collect();
    let _ = writeln!(text, "\n{:<10}{}", run.strategy.name, run.strategy.description);
    let rows = levels.iter().max().map_or(0, |level| level.div_ceil(8)).clamp(ROWS + 1, ROWS * 2);
    for row in (0..rows).rev() {
        let label = match row {
            ROWS => limit.to_string(),
            _ if row + 1 == rows => most.to_string(),
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
    let window = arguments.quota.window();
    let labels = (0..=LOAD_WINDOWS)
        .map(|index| format!("{:<WINDOW_COLUMNS$}", format!("{}s", (window * index).as_secs_f64())));
    let _ = writeln!(text, "          {}", labels.collect::<String>().trim_end());
}
