//! Formats the table and the charts.

use std::{fmt::Write, time::Duration};

use crate::{
    arguments::Arguments,
    drawing,
    figures::Run,
    simulation::{ROUND_TRIP, callers, idle},
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
    let _ = writeln!(text, "{quota}\n{}", scenario(arguments));
    let options = options(arguments);
    text.extend([options.as_str(), if options.is_empty() { "\n" } else { "\n\n" }]);
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
    let (callers, idle, end) = (callers(arguments), idle(arguments.quota), arguments.length());
    let server_name = &arguments.server_name;
    format!("{server_name}; {callers} callers always have a request to send, from {idle:?} to {end:?}")
}

/// Describes the options that are not used by default. The text is empty without such options.
pub(crate) fn options(arguments: &Arguments) -> String {
    let response_time = Some(arguments.response_time).filter(|time| *time != ROUND_TRIP);
    let parts = [
        arguments
            .tokens
            .map(|it| format!("{:#}; {} tokens ± {} % per request", it.quota, it.estimate, it.error)),
        arguments.max_in_flight.map(|max| format!("at most {max} in flight")),
        response_time.map(|time| format!("a response takes {time:?}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn table(text: &mut String, arguments: &Arguments, runs: &[Run]) {
    let (limit, window) = (arguments.quota.limit(), arguments.quota.window());
    let most_in = format!("{window:?}");
    let [mut above, mut below] = [
        format!("{:>36} {:>11} {:>8} {:>9}  wait in the limiter", "rejected", "most in", "quota", "most in"),
        format!(
            "strategy     sent  accepted    by 429 {most_in:>11} {:>8} {:>9} {:>7} {:>6} {:>7}",
            "used", "flight", "median", "p95", "longest"
        ),
    ];
    if let Some(tokens) = arguments.tokens {
        let most_in = format!("{:?}", tokens.quota.window());
        let _ = write!(above, " {:>9} {:>19}", "tokens", "most tokens in");
        let _ = write!(below, " {:>9} {most_in:>19}", "used");
    }
    let _ = writeln!(text, "{above}\n{below}");
    for run in runs {
        let [median, p95, longest] = [50, 95, 100].map(|percent| short(run.wait(percent)));
        let (name, sent, rejected) = (run.strategy.name, run.sent, run.rejected());
        let (accepted, most) = (sent - rejected, format!("{}/{limit}", run.most()));
        let used = accepted as f64 * 100.0 / f64::from(arguments.requests());
        let _ = write!(
            text,
            "{name:<8} {sent:>8} {accepted:>9} {rejected:>9} {most:>11} {used:>6.1} % {:>9} {median:>7} {p95:>6} {longest:>7}",
            run.in_flight
        );
        if let Some((of_quota, tokens)) = arguments.tokens.zip(run.tokens.as_ref()) {
            let quota = of_quota.quota;
            let windows = (arguments.length() - idle(arguments.quota)).div_duration_f64(quota.window());
            let used = tokens.used as f64 * 100.0 / (f64::from(quota.limit()) * windows);
            let most = format!("{}/{}", tokens.most, quota.limit());
            let _ = write!(text, " {used:>7.1} % {most:>19}");
        }
        text.push('\n');
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
