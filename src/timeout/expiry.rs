//! The functions that the timeouts share.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Sleep;

use crate::{
    call::{CallContext, StopReason},
    clock::Instant,
    config::InvalidConfig,
    error::{Error, ErrorKind},
};

/// Returns `limit`, or an error if it is zero.
pub(super) fn checked_limit(field: &'static str, limit: Duration) -> Result<Duration, InvalidConfig> {
    if limit.is_zero() {
        return Err(InvalidConfig::new(field, "0ns", "more than zero"));
    }
    Ok(limit)
}

/// Waits until `ends`, which may change. Creates the timer if there is none.
pub(super) fn poll_timer(
    timer: &mut Option<Pin<Box<Sleep>>>,
    ends: Instant,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(ends)));
    if timer.deadline() != ends {
        timer.as_mut().reset(ends);
    }
    timer.as_mut().poll(cx)
}

/// Ends a call at its deadline. Returns the error of the call.
pub(super) fn deadline_exceeded(call: &CallContext, deadline: Instant) -> Error {
    call.end(StopReason::Deadline);
    let limit = deadline.saturating_duration_since(call.started());
    let error = Error::new(ErrorKind::Deadline, Some(limit), None);
    if call.is_unsent() { error.not_sent() } else { error }
}
