use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{in_flight::InFlight, permit::Permit, shell::acquire::Acquire};
use crate::{
    call::CallContext,
    error::{Refusal, polled_after_completion},
    telemetry::Waiting,
};

/// The wait for a permit.
pub(super) struct Pending {
    acquire: Acquire,
    /// `None` after the wait.
    waiting: Option<Waiting>,
    /// Keeps the request of an expired permit in flight. `None` if no permit has expired.
    pub(super) expired: Option<InFlight<'static>>,
}

impl Pending {
    pub(super) fn new(
        acquire: Acquire,
        call: Option<&CallContext>,
        expired: Option<InFlight<'static>>,
    ) -> Self {
        Self { acquire, waiting: Some(Waiting::begin(call)), expired }
    }

    pub(super) fn poll(
        &mut self,
        call: Option<&CallContext>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Permit<'static>, Refusal>> {
        let granted = ready!(Pin::new(&mut self.acquire).poll(cx));
        let Some(waiting) = self.waiting.take() else { polled_after_completion() };
        waiting.over(call);
        Poll::Ready(granted)
    }
}
