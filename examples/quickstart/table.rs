use std::{collections::BTreeMap, fmt::Write, time::Duration};

use http::{HeaderValue, Method};
use tower_outbound::{
    Report,
    call::{AttemptReport, Outcome},
};

use crate::{load::Call, support::Ledger};

/// What is known of one service: the calls from our side, the ledger from the server's.
pub(crate) struct Column<'a> {
    pub(crate) name: &'a str,
    pub(crate) calls: &'a [Call],
    pub(crate) ledger: Option<&'a Ledger>,
}

impl Column<'_> {
    fn reports(&self) -> impl Iterator<Item = &Report> {
        self.calls.iter().filter_map(|call| call.report.as_ref())
    }

    fn attempts(&self) -> Vec<AttemptReport> {
        self.reports().flat_map(Report::attempts).collect()
    }

    /// How often each status was answered; under 0, how often none was.
    fn answers(&self) -> BTreeMap<u16, usize> {
        let mut answers = BTreeMap::new();
        for attempt in self.attempts() {
            let status = match attempt.outcome {
                Some(Outcome::Response(status)) => status.as_u16(),
                _ => 0,
            };
            *answers.entry(status).or_default() += 1;
        }
        answers
    }

    fn waited(&self) -> Duration {
        self.reports().map(Report::waited).sum()
    }

    /// The time that `percent` of the calls stayed within.
    fn percentile(&self, percent: usize) -> Duration {
        let mut took: Vec<_> = self.calls.iter().map(|call| call.took).collect();
        took.sort_unstable();
        let rank = (took.len() * percent).div_ceil(100);
        took.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    fn on_server(&self, count: impl Fn(&Ledger) -> usize) -> String {
        self.ledger.map_or("-".to_owned(), |ledger| count(ledger).to_string())
    }
}

/// A line for each figure, a column for each service.
pub(crate) fn summary(columns: &[Column<'_>]) -> String {
    let mut text = String::new();
    let mut line = |title: &str, cell: &dyn Fn(&Column<'_>) -> String| {
        let cells: String = columns.iter().map(|column| format!("{:>20}", cell(column))).collect();
        // Writing into a string can't fail.
        let _ = writeln!(text, "{title:<28}{cells}");
    };
    line("", &|column| column.name.to_owned());
    line("calls", &|column| column.calls.len().to_string());
    line("attempts", &|column| column.attempts().len().to_string());
    line("retries", &|column| {
        column.reports().map(|r| r.attempt_count().saturating_sub(1)).sum::<usize>().to_string()
    });
    let statuses = columns.iter().flat_map(|column| column.answers().into_keys());
    for status in statuses.collect::<std::collections::BTreeSet<_>>() {
        let title = if status == 0 {
            "attempts without an answer".to_owned()
        } else {
            format!("attempts answered {status}")
        };
        line(&title, &|column| column.answers().get(&status).unwrap_or(&0).to_string());
    }
    line("calls failed in the end", &|column| {
        column.calls.iter().filter(|call| call.failed()).count().to_string()
    });
    line("requests at the server", &|column| column.on_server(|ledger| ledger.requests.len()));
    line("connections at the server", &|column| column.on_server(|ledger| ledger.connections));
    line("violations of its limit", &|column| column.on_server(Ledger::violations));
    line("waited for the limiter", &|column| seconds(column.waited()));
    line("  a call on average", &|column| {
        seconds(column.waited() / u32::try_from(column.calls.len().max(1)).unwrap_or(u32::MAX))
    });
    line("p50 of a call", &|column| seconds(column.percentile(50)));
    line("p99 of a call", &|column| seconds(column.percentile(99)));
    text
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

/// So many failures of a service are listed.
const SHOWN: usize = 10;

/// The calls that failed in the end, by the ids to ask the service about; nothing when there were none.
pub(crate) fn failures(columns: &[Column<'_>]) -> String {
    let mut text = String::new();
    for column in columns {
        let failed: Vec<_> = column.calls.iter().filter(|call| call.failed()).collect();
        if text.is_empty() && !failed.is_empty() {
            text.push_str("\nCalls that failed in the end, with their request ids, ours and the server's:\n");
        }
        for call in failed.iter().take(SHOWN) {
            let _ = writeln!(text, "  {:<18} {}", column.name, failure(call));
        }
        if failed.len() > SHOWN {
            let _ = writeln!(text, "  {:<18} and {} more", column.name, failed.len() - SHOWN);
        }
    }
    let posts = columns.iter().flat_map(|column| column.calls);
    if posts.into_iter().any(|call| call.failed() && call.method == Method::POST) {
        text.push_str(
            "A POST that may have been processed is not sent twice: what to do is yours to decide.\n",
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
    let own = show(report.and_then(Report::request_id));
    let server = show(report.and_then(Report::server_request_id));
    let attempts = report.map_or(0, Report::attempt_count);
    let ended = report.and_then(Report::stop_reason).map_or("-", |ended| ended.as_str());
    let result = match &call.result {
        Ok(status) => format!(" {}", status.as_u16()),
        Err(error) => format!("\n    {error}"),
    };
    let times = if attempts == 1 { "attempt" } else { "attempts" };
    format!("{own} {server:<7} {:<4} {attempts} {times}, {ended}:{result}", call.method)
}
