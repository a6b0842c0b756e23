//! The renewal of a permit whose request has waited for its connection.

use std::task::{Context, Poll, Waker};

use http::Request;

use super::{CallContext, Phase};

/// How far a renewal has got. The rate limit layer and the transport below it share this state through the call,
/// because the transport cannot ask for a permit itself.
pub(super) enum Renewal {
    /// The rate limit layer has seen that its request waits for a connection.
    Watched(Waker),
    /// The transport has a connection. It waits until the rate limit layer has checked the permit.
    Wanted(Box<Request<()>>, Waker),
    /// The rate limit layer checks the permit, or waits for another one.
    Checking(Waker),
    Renewed,
}

impl CallContext {
    /// Called by the rate limit layer when its inner service is pending. Returns the head of the request if the
    /// transport asks whether the permit still applies. [`renewed`](Self::renewed) must then be called.
    pub(crate) fn renewal(&self, cx: &mut Context<'_>) -> Option<Box<Request<()>>> {
        if !matches!(self.phase(), Phase::Connecting | Phase::Waiting) {
            return None;
        }
        let mut state = self.0.shared.state();
        match state.renewal.take() {
            Some(Renewal::Wanted(mut head, transport)) => {
                // Stored without the call, because the call stores the head.
                head.extensions_mut().insert(self.clone());
                state.renewal = Some(Renewal::Checking(transport));
                Some(head)
            }
            _ => {
                state.renewal = Some(Renewal::Watched(cx.waker().clone()));
                None
            }
        }
    }

    /// Lets the transport send the request.
    pub(crate) fn renewed(&self) {
        let checked = self.0.shared.state().renewal.replace(Renewal::Renewed);
        if let Some(Renewal::Checking(transport)) = checked {
            transport.wake();
        }
    }

    /// Called by the transport before it sends a request that has waited for a connection. Waits until the rate limit
    /// layer, if there is one, has a permit that still applies.
    #[cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the transport asks"))]
    pub(crate) fn poll_renewed<B>(&self, request: &Request<B>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.shared.state();
        let limiter = match state.renewal.take() {
            // No rate limit layer has seen the wait.
            None | Some(Renewal::Renewed) => return Poll::Ready(()),
            Some(Renewal::Watched(limiter)) => {
                let mut head = Box::new(Request::new(()));
                *head.method_mut() = request.method().clone();
                *head.uri_mut() = request.uri().clone();
                *head.headers_mut() = request.headers().clone();
                *head.extensions_mut() = request.extensions().clone();
                head.extensions_mut().remove::<Self>();
                state.renewal = Some(Renewal::Wanted(head, cx.waker().clone()));
                Some(limiter)
            }
            Some(Renewal::Wanted(head, _)) => {
                state.renewal = Some(Renewal::Wanted(head, cx.waker().clone()));
                None
            }
            Some(Renewal::Checking(_)) => {
                state.renewal = Some(Renewal::Checking(cx.waker().clone()));
                None
            }
        };
        drop(state);
        if let Some(limiter) = limiter {
            limiter.wake();
        }
        Poll::Pending
    }
}
