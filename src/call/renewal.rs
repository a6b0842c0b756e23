//! The renewal of a permit whose request has waited for its connection.

use std::{
    mem,
    task::{Context, Poll, Waker},
};

use http::Request;

use super::{CallContext, RecordedHead};

/// How far a renewal has got. The rate limit layer and the transport below it share this state through the call,
/// because the transport cannot acquire a permit itself.
pub(super) enum Renewal {
    /// The rate limit layer has seen that its request waits for a connection.
    Watched(Waker),
    /// The transport has a connection. It waits until the rate limit layer has checked the permit.
    Wanted(Box<RecordedHead>, Waker),
    /// The rate limit layer checks the permit, or waits for another one.
    Checking(Waker),
    Renewed,
}

impl CallContext {
    /// Called by the rate limit layer when its inner service is pending. Returns the head of the request if the
    /// transport waits until the permit was checked. [`renewed`](Self::renewed) must then be called.
    pub(crate) fn renewal(&self, cx: &mut Context<'_>) -> Option<Box<RecordedHead>> {
        if !self.is_unsent() {
            return None;
        }
        let mut state = self.0.shared.state();
        let Some(renewal) = state.renewal.as_deref_mut() else {
            state.renewal = Some(Box::new(Renewal::Watched(cx.waker().clone())));
            return None;
        };
        let (next, head) = match mem::replace(renewal, Renewal::Renewed) {
            Renewal::Wanted(head, transport) => (Renewal::Checking(transport), Some(head)),
            Renewal::Watched(_) => (Renewal::Watched(cx.waker().clone()), None),
            // An inner rate limit layer checks its permit. An outer layer must not answer for it.
            checked @ (Renewal::Checking(_) | Renewal::Renewed) => (checked, None),
        };
        *renewal = next;
        head
    }

    /// Lets the transport send the request.
    pub(crate) fn renewed(&self) {
        let mut state = self.0.shared.state();
        let checked = state.renewal.as_deref_mut().map(|renewal| mem::replace(renewal, Renewal::Renewed));
        drop(state);
        if let Some(Renewal::Checking(transport)) = checked {
            transport.wake();
        }
    }

    /// Called by the transport before it sends a request that has waited for a connection. Waits until the rate limit
    /// layer, if there is one, has a permit that still applies.
    #[cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the transport calls it"))]
    pub(crate) fn poll_renewed<B>(&self, request: &Request<B>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.shared.state();
        // Without a renewal, no rate limit layer has seen the wait.
        let Some(renewal) = state.renewal.as_deref_mut() else { return Poll::Ready(()) };
        match renewal {
            Renewal::Renewed => {
                state.renewal = None;
                return Poll::Ready(());
            }
            Renewal::Checking(transport) => {
                transport.clone_from(cx.waker());
                return Poll::Pending;
            }
            // While several attempts run at once, as with hedging, no rate limit layer checks the permit.
            _ if !self.is_unsent() => return Poll::Ready(()),
            Renewal::Wanted(_, transport) => {
                transport.clone_from(cx.waker());
                return Poll::Pending;
            }
            Renewal::Watched(_) => {}
        }
        let head = Box::new(RecordedHead::of(request));
        let watched = mem::replace(renewal, Renewal::Wanted(head, cx.waker().clone()));
        drop(state);
        if let Renewal::Watched(limiter) = watched {
            limiter.wake();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::{super::Phase, *};

    /// Returns a request that waits for its connection.
    fn connecting() -> (Request<()>, CallContext, Context<'static>) {
        let mut request = Request::new(());
        let call = CallContext::of(request.extensions_mut());
        call.begin_watch();
        call.enter(Phase::Connecting);
        (request, call, Context::from_waker(Waker::noop()))
    }

    #[test]
    fn request_does_not_wait_for_its_permit_while_several_attempts_run() {
        let (request, call, mut cx) = connecting();
        assert!(call.renewal(&mut cx).is_none());
        assert!(call.poll_renewed(&request, &mut cx).is_pending());
        call.begin_watch();
        for attempt in ["first", "second"] {
            assert!(call.poll_renewed(&request, &mut cx).is_ready(), "{attempt}");
        }
    }

    #[test]
    fn request_waits_for_the_permit_that_its_limiter_acquires_although_another_attempt_begins() {
        let (request, call, mut cx) = connecting();
        assert!(call.renewal(&mut cx).is_none());
        assert!(call.poll_renewed(&request, &mut cx).is_pending());
        assert!(call.renewal(&mut cx).is_some());
        call.begin_watch();
        assert!(call.poll_renewed(&request, &mut cx).is_pending());
        call.renewed();
        assert!(call.poll_renewed(&request, &mut cx).is_ready());
    }

    #[test]
    fn outer_rate_limit_layer_does_not_answer_for_the_inner_one() {
        let (request, call, mut cx) = connecting();
        for layer in ["inner", "outer"] {
            assert!(call.renewal(&mut cx).is_none(), "{layer}");
        }
        assert!(call.poll_renewed(&request, &mut cx).is_pending());
        assert!(call.renewal(&mut cx).is_some(), "the inner layer checks its permit");
        for _ in 0..2 {
            assert!(call.renewal(&mut cx).is_none(), "the outer layer does not");
            assert!(call.poll_renewed(&request, &mut cx).is_pending());
        }
        call.renewed();
        assert!(call.renewal(&mut cx).is_none());
        assert!(call.poll_renewed(&request, &mut cx).is_ready());
    }
}
