//! The excerpt of the body of an error response.

use std::time::Duration;

use http_body_util::BodyExt;

use crate::{
    body::{Body, Drain},
    call::Report,
    clock::{self, Instant},
    policy::retry::DRAIN_TIME,
};

/// The maximum length of the excerpt of a body, in bytes.
const EXCERPT: usize = 1024;
/// The maximum number of bytes that are read for an excerpt. It is twice the length of the excerpt, so that a key at
/// the end of the excerpt is complete and can be redacted.
const READ: usize = 2 * EXCERPT;
/// The maximum time to read the body of a response with an error status. The excerpt contains the bytes that have
/// arrived by then.
pub(super) const EXCERPT_TIME: Duration = Duration::from_secs(1);

/// Returns the first part of a body as one line, with the keys of the call redacted.
pub(super) fn excerpt(body: &[u8], report: Option<&Report>) -> String {
    let text = String::from_utf8_lossy(body.get(..READ).unwrap_or(body));
    let mut text = report.map_or_else(|| text.to_string(), |report| report.redact(&text));
    if let Some((end, _)) = text.char_indices().find(|(at, _)| *at >= EXCERPT) {
        text.truncate(end);
        text.push_str("...");
    }
    text.replace(char::is_control, " ")
}

/// Reads the first part of a body. Stops if the body ends or fails, and at the time `ends`. Then drains the body.
pub(super) async fn beginning(mut body: Body, ends: Instant) -> Vec<u8> {
    let mut start = Vec::new();
    let read = async {
        // Limits the number of frames, because a body may have endless empty frames.
        for _ in 0..READ {
            let Some(Ok(frame)) = body.frame().await else { break };
            start.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            if start.len() >= READ {
                break;
            }
        }
    };
    let _ = tokio::time::timeout_at(ends, read).await;
    let ends = ends.min(clock::after(clock::now(), DRAIN_TIME));
    let _ = tokio::time::timeout_at(ends, Drain::new(body)).await;
    start
}
