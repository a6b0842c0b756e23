use std::{collections::BTreeMap, fmt::Write, time::Duration};

use http::{HeaderValue, Method};
use tower_outbound::{
    Report,
    call::{AttemptReport, Outcome},
};

use crate::{load::Call, support::RequestLog};

/// The calls to one service, and the log of its mock server.
pub(crate) struct Column<'a> {
    pub(crate) name: &'a str,
    pub(crate) calls: &'a [Call],
    /// The log of the mock server, or `None` for a real service.
    pub(crate) server: Option<&'a RequestLog>,
}

impl Column<'_> {
    fn reports(&self) -> impl Iterator<Item = &Report> {
        self.calls.iter().filter_map(|call| call.report.as_ref())
    }

    fn attempts(&self) -> Vec<AttemptReport> {
        self.reports().flat_map(Report::attempts).collect()
    }

    /// Returns the number of attempts by status. Attempts without a response count as status 0.
    fn statuses(&self) -> BTreeMap<u16, usize> {
        let mut statuses = BTreeMap::new();
        for attempt in self.attempts() {
            let status = attempt.outcome.and_then(Outcome::status);
            *statuses.entry(status.map_or(0, |status| status.as_u16())).or_default() += 1;
        }
        statuses
    }

    fn queued(&self) -> Duration {
        self.reports().map(Report::queued).sum()
    }

    /// Returns the given percentile of the calls' durations.
    fn percentile(&self, percent: usize) -> Duration {
        let mut durations: Vec<_> = self.calls.iter().map(|call| call.took).collect();
        durations.sort_unstable();
        let rank = (durations.len() * percent).div_ceil(100);
        durations.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    fn server_count(&self, count: impl Fn(&RequestLog) -> usize) -> String {
        self.server.map_or("-".to_owned(), |log| count(log).to_string())
    }
}

/// Returns the table, with one row per figure and one column per service.
pub(crate) fn summary(columns: &[Column<'_>]) -> String {
    let mut text = String::new();
    let mut row = |title: &str, cell: &dyn Fn(&Column<'_>) -> String| {
        let cells: String = columns.iter().map(|column| format!("{:>20}", cell(column))).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{title:<28}{cells}");
    };
    row("", &|column| column.name.to_owned());
    row("calls", &|column| column.calls.len().to_string());
    row("attempts", &|column| column.attempts().len().to_string());
    row("retries", &|column| {
        column.reports().map(|r| r.attempt_count().saturating_sub(1)).sum::<usize>().to_string()
    });
    let statuses = columns.iter().flat_map(|column| column.statuses().into_keys());
    for status in statuses.collect::<std::collections::BTreeSet<_>>() {
        let title = if status == 0 {
            "attempts without a response".to_owned()
        } else {
            format!("attempts with status {status}")
        };
        row(&title, &|column| column.statuses().get(&status).unwrap_or(&0).to_string());
    }
    row("failed calls", &|column| column.calls.iter().filter(|call| call.failed()).count().to_string());
    row("requests at the server", &|column| column.server_count(|log| log.requests.len()));
    row("connections at the server", &|column| column.server_count(|log| log.connections));
    row("violations of the limit", &|column| column.server_count(RequestLog::violations));
    row("waited for the limiter", &|column| seconds(column.queued()));
    row("  average per call", &|column| {
        seconds(column.queued() / u32::try_from(column.calls.len().max(1)).unwrap_or(u32::MAX))
    });
    row("p50 of a call", &|column| seconds(column.percentile(50)));
    row("p99 of a call", &|column| seconds(column.percentile(99)));
    text
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

/// The largest number of failed calls that are listed for each service.
const MAX_LISTED: usize = 10;

/// Lists the failed calls with their request ids. Returns an empty string if no call failed.
pub(crate) fn failures(columns: &[Column<'_>]) -> String {
    let mut text = String::new();
    for column in columns {
        let failed: Vec<_> = column.calls.iter().filter(|call| call.failed()).collect();
        if text.is_empty() && !failed.is_empty() {
            text.push_str("\nFailed calls, with the request ids of the client and of the server:\n");
        }
        for call in failed.iter().take(MAX_LISTED) {
            let _ = writeln!(text, "  {:<18} {}", column.name, failure(call));
        }
        if failed.len() > MAX_LISTED {
            let _ = writeln!(text, "  {:<18} and {} more", column.name, failed.len() - MAX_LISTED);
        }
    }
    let mut calls = columns.iter().flat_map(|column| column.calls);
    if calls.any(|call| call.failed() && call.method == Method::POST) {
        text.push_str(
            "A POST that the server may have processed is not retried. The application decides what to do.\n",
        );
    }
    text
}

fn failure(call: &Call) -> String {
    let show = |id: Option<HeaderValue>| match id {
        Some(id) => String::from_utf8_lossy(id.as_bytes()).into_owned(),
        None => "-".to_owned(),
    };
    let report = call.report.as_ref();
    let client = show(report.and_then(Report::request_id));
    let server = show(report.and_then(Report::server_request_id));
    let attempts = report.map_or(0, Report::attempt_count);
    let reason = report.and_then(Report::stop_reason).map_or("-", |reason| reason.as_str());
    let result = match &call.result {
        Ok(status) => format!(" {}", status.as_u16()),
        Err(error) => format!("\n    {error}"),
    };
    let noun = if attempts == 1 { "attempt" } else { "attempts" };
    format!("{client} {server:<7} {:<4} {attempts} {noun}, {reason}:{result}", call.method)
}
