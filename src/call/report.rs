use std::{
    fmt::{self, Write},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{Extensions, HeaderValue, Response, StatusCode};

use super::{
    AttemptReport, DeadlineSetting, Outcome, StopReason,
    attempt::Attempt,
    state::{Shared, State},
};
#[cfg(feature = "client")]
use crate::clock::Instant;

/// The record of a call's attempts and of its end. It is available from a response
/// ([`from_response`](Self::from_response)) and from an error ([`Error::report`](crate::Error::report)).
///
/// ```
/// use tower::{Layer, ServiceExt};
/// use tower_outbound::{Report, call::StopReason, retry::RetryLayer, test_util::ScriptedService};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let service = RetryLayer::new().layer(ScriptedService::new([503, 200]));
/// let request = http::Request::get("https://api.example.com/v1").body(tower_outbound::Body::empty())?;
/// let response = service.oneshot(request).await?;
///
/// let report = Report::from_response(&response).ok_or("no report")?;
/// assert_eq!((report.attempt_count(), report.stop_reason()), (2, Some(StopReason::Success)));
/// # Ok(())
/// # }
/// ```
///
/// `Display` writes one line, which shows [where the time went](crate::request_id#where-the-time-went):
/// `request id 0199…: 3 attempts (503@27ms, timeout@3s, 200@2s), success, queued 1.2s, backoff 310ms`.
///
/// # Clone
///
/// Cheap: every clone shares the data of the report, which never shows a key or a body.
#[derive(Clone)]
pub struct Report {
    pub(super) shared: Arc<Shared>,
}

impl Report {
    /// Returns the report of a response, if a layer of this crate has recorded one.
    pub fn from_response<B>(response: &Response<B>) -> Option<&Self> {
        Self::from_extensions(response.extensions())
    }

    /// Returns the report from the extensions of any response, such as a `reqwest::Response` or a `tonic::Response`.
    pub fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Returns the name of the called service, if the request id layer was given one.
    pub fn service(&self) -> Option<Arc<str>> {
        self.shared.state().identity.as_ref()?.naming.service.clone()
    }

    /// Returns the id of the call, which is sent in the request id header.
    pub fn request_id(&self) -> Option<HeaderValue> {
        Some(self.shared.state().identity.as_ref()?.request_id.clone())
    }

    /// Returns the request id that the server sent. The id is from the latest response that has one. If that response
    /// has several ids, the first of the
    /// [configured headers](crate::request_id::RequestIdLayer::with_server_headers) applies.
    ///
    /// Ignores an id of more than 128 characters or with characters other than visible ASCII. Also ignores an id that
    /// contains the key of an attempt, in plain text or percent-encoded.
    pub fn server_request_id(&self) -> Option<HeaderValue> {
        self.shared.state().server_request_id.as_deref()?.parse().ok()
    }

    /// Redacts the call's two latest keys in `text`, but not their encoded forms.
    #[cfg(feature = "client")]
    pub(crate) fn redact(&self, text: &str) -> String {
        self.shared.state().keys.redact(text)
    }

    /// Returns the name of the setting that determines the deadline of the call.
    pub(crate) fn deadline_source(&self) -> &'static str {
        match self.shared.deadline() {
            Some((_, DeadlineSetting::TotalTimeout)) => "total timeout",
            Some((_, DeadlineSetting::RequestTimeout)) => "timeout of the request",
            Some((_, DeadlineSetting::Extension)) | None => "deadline",
        }
    }

    #[cfg(feature = "client")]
    pub(crate) fn started(&self) -> Instant {
        self.shared.started
    }

    /// Returns the deadline of the call, and the time between the start of the call and its deadline.
    #[cfg(feature = "client")]
    pub(crate) fn deadline(&self) -> Option<(Instant, Duration)> {
        let (deadline, _) = self.shared.deadline()?;
        Some((deadline, deadline.saturating_duration_since(self.shared.started)))
    }

    /// Returns whether a layer above the stack has sent another request for this call, or may have.
    #[cfg(feature = "client")]
    pub(crate) fn is_after_processing(&self) -> bool {
        self.shared.state().after_processing
    }

    /// Returns the attempts in order. The list is empty without a retry layer.
    pub fn attempts(&self) -> Vec<AttemptReport> {
        self.shared.state().attempts.reports()
    }

    /// Returns the last attempt.
    pub(crate) fn last_attempt(&self) -> Option<AttemptReport> {
        self.shared.state().attempts.last_report()
    }

    /// Returns the number of attempts, which is 0 without a retry layer.
    pub fn attempt_count(&self) -> usize {
        self.shared.state().attempts.iter().count()
    }

    /// Returns whether the server may have processed at least one attempt. Returns `false` only if each attempt
    /// provably was not processed: see [`Error::may_have_been_processed`](crate::Error::may_have_been_processed).
    ///
    /// Returns `true` if the report has no attempts, or an attempt without an outcome. Use the method of the error if
    /// there is one, because the error may prove more.
    pub fn may_have_been_processed(&self) -> bool {
        self.was_processed(true)
    }

    /// Returns whether the server may have processed an attempt. `otherwise` is the result for the last attempt if it
    /// has no outcome, and for a call without attempts.
    pub(crate) fn was_processed(&self, otherwise: bool) -> bool {
        let state = self.shared.state();
        state.after_processing || state.attempts.were_processed(otherwise)
    }

    /// Returns the total time that all attempts waited in the limiter's queue.
    pub fn queued(&self) -> Duration {
        self.shared.state().queued.get().unwrap_or_default()
    }

    /// Returns the total time between the end of an attempt and the start of the next one.
    pub(crate) fn backoff(&self) -> Duration {
        self.shared.state().backoff()
    }

    /// Returns the list of attempts for logs, with the duration of each.
    pub(crate) fn attempt_log(&self) -> String {
        self.shared.state().attempt_log()
    }

    /// Returns the delay after which another attempt could succeed, counted from the end of the last attempt. The delay
    /// is known if it ended the call, because it exceeds the deadline or `max_retry_after`. Otherwise returns `None`.
    pub fn retry_after(&self) -> Option<Duration> {
        self.shared.state().rare.as_deref()?.retry_after.get()
    }

    /// Returns why no further attempt was made. Returns `None` while the call runs, and if the caller dropped the call.
    pub fn stop_reason(&self) -> Option<StopReason> {
        let has_succeeded = self.shared.has_succeeded.load(Ordering::Relaxed);
        if has_succeeded { Some(StopReason::Success) } else { self.shared.state().stop_reason }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = self.request_id().as_ref().and_then(|id| id.to_str().ok()) {
            write!(f, "request id {id}: ")?;
        }
        match self.attempt_count() {
            0 => f.write_str("0 attempts"),
            1 => write!(f, "1 attempt ({})", self.attempt_log()),
            count => write!(f, "{count} attempts ({})", self.attempt_log()),
        }?;
        if let Some(stop) = self.stop_reason() {
            write!(f, ", {}", stop.as_str())?;
        }
        for (name, time) in [("queued", self.queued()), ("backoff", self.backoff())] {
            if !time.is_zero() {
                write!(f, ", {name} {}", short(time))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report")
            .field("service", &self.service())
            .field("request_id", &self.request_id())
            .field("server_request_id", &self.server_request_id())
            .field("queued", &self.queued())
            .field("attempts", &self.attempts())
            .field("stop_reason", &self.stop_reason())
            .finish()
    }
}

/// The longest list of attempts, in characters.
const LONGEST: usize = 240;
/// The longest text for the attempts that are not listed.
const ELIDED: usize = 40;

impl State {
    /// Returns the total time between the end of an attempt and the start of the next one, or the deadline.
    fn backoff(&self) -> Duration {
        let starts = self.attempts.iter().skip(1).map(|next| next.started).chain([self.expired()]);
        let pairs = self.attempts.iter().zip(starts).filter(|(attempt, _)| attempt.delay.get().is_some());
        sum(pairs.filter_map(|(attempt, next)| Some(next.get()?.saturating_sub(attempt.ended.get()?))))
    }

    /// Lists the attempts with their durations, without the time in the limiter's queue: `503@27ms, timeout@3s`. If
    /// the list is too long, the earlier attempts become a count and the sum of their durations.
    fn attempt_log(&self) -> String {
        let entries: Vec<_> = self.attempts.iter().map(|attempt| self.entry(attempt)).collect();
        let lengths = entries.iter().rev().scan(0, |length, (text, _)| {
            *length += text.len() + 2;
            Some(*length)
        });
        let fitting = |limit: usize| lengths.clone().take_while(|length| *length <= limit).count();
        let listed = match fitting(LONGEST + 2) {
            all if all == entries.len() => all,
            _ => fitting(LONGEST - ELIDED),
        };
        let (earlier, listed) = entries.split_at(entries.len() - listed);
        let took = sum(earlier.iter().map(|(_, took)| *took));
        let earlier = (!earlier.is_empty()).then(|| format!("{} earlier@{}", earlier.len(), short(took)));
        let texts = earlier.iter().map(String::as_str).chain(listed.iter().map(|(text, _)| text.as_str()));
        texts.collect::<Vec<_>>().join(", ")
    }

    /// Returns the text of an attempt and its duration. An attempt without an end ran until the deadline, or it still
    /// runs.
    fn entry(&self, attempt: &Attempt) -> (String, Duration) {
        let status = attempt.outcome.and_then(Outcome::status);
        let name = match attempt.failure.or(status.as_ref().map(StatusCode::as_str)) {
            Some("attempt_timeout") => "timeout",
            Some(name) => name,
            None if self.stop_reason == Some(StopReason::Deadline) => StopReason::Deadline.as_str(),
            None => "unfinished",
        };
        let is_not_sent = matches!(attempt.outcome, Some(Outcome::NotSent | Outcome::Refused));
        let not_sent = if is_not_sent { "(not_sent)" } else { "" };
        let mut text = format!("{name}{not_sent}");
        let Some(ended) = attempt.ended.get().or(self.expired().get()) else { return (text, Duration::ZERO) };
        let before = [attempt.started, attempt.queued].map(|time| time.get().unwrap_or_default());
        let took = ended.saturating_sub(sum(before.into_iter()));
        let _ = write!(text, "@{}", short(took));
        (text, took)
    }
}

fn sum(times: impl Iterator<Item = Duration>) -> Duration {
    times.fold(Duration::ZERO, Duration::saturating_add)
}

/// Returns whole milliseconds, or from one second on, seconds with at most two decimal places.
fn short(duration: Duration) -> String {
    let millis = duration.as_micros().saturating_add(500) / 1_000;
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    let seconds = format!("{:.2}", millis as f64 / 1_000.0);
    format!("{}s", seconds.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests;
