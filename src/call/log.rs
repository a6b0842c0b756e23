//! The state that the log events and the spans of a call read.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{HeaderValue, Uri};

use super::{AttemptReport, CallContext};

/// The state that the event of a call shows.
pub(crate) struct CallSummary {
    pub(crate) has_service: bool,
    /// The service's name and the request id. Both are `None` if the call's span already contains them.
    pub(crate) service: Option<Arc<str>>,
    pub(crate) request_id: Option<HeaderValue>,
    pub(crate) attempts: usize,
    /// The member and the URI of the last attempt that a pool passed to a member.
    pub(crate) routed: Option<(usize, Uri)>,
    pub(crate) queued: Duration,
    pub(crate) server_request_id: Option<Arc<str>>,
    /// The attempt that the event shows.
    pub(crate) attempt: Option<AttemptReport>,
}

impl CallContext {
    /// Returns the service's name and the request id for a log event. Both are `None` if the call's span already
    /// contains them.
    pub(crate) fn names_for_event(&self) -> (Option<Arc<str>>, Option<HeaderValue>) {
        match &self.0.shared.state().identity {
            Some(identity) if !identity.in_span => {
                (identity.naming.service.clone(), Some(identity.request_id.clone()))
            }
            _ => (None, None),
        }
    }

    /// Returns whether the event of the call shows its last attempt. `only` is `true` if the call makes no other
    /// attempt.
    pub(crate) fn defer_attempt(&self, only: bool) -> bool {
        let mut state = self.0.shared.state();
        state.deferred = only && state.identity.as_ref().is_some_and(|identity| identity.shows_attempt);
        state.deferred
    }

    /// Returns the state that the event of the call shows.
    pub(crate) fn summary(&self) -> CallSummary {
        let state = self.0.shared.state();
        let identity = state.identity.as_ref();
        let outside = identity.filter(|identity| !identity.in_span);
        let member = state.rare.as_deref().and_then(|rare| rare.member.as_ref());
        CallSummary {
            has_service: identity.is_some_and(|identity| identity.naming.service.is_some()),
            service: outside.and_then(|identity| identity.naming.service.clone()),
            request_id: outside.map(|identity| identity.request_id.clone()),
            attempts: state.attempts.iter().count(),
            routed: member.and_then(|member| member.routed.clone()),
            queued: state.queued.get().unwrap_or_default(),
            server_request_id: state.server_request_id.clone(),
            attempt: if state.deferred { state.attempts.last_report() } else { None },
        }
    }

    /// Raises the spans of the call's attempts to INFO.
    pub(crate) fn raise_spans(&self) {
        self.0.shared.has_info_spans.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_info_spans(&self) -> bool {
        self.0.shared.has_info_spans.load(Ordering::Relaxed)
    }
}
