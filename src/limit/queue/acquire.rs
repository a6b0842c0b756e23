use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::time::Sleep;

use super::{
    Queue,
    any::{AnyQueue, Joined, Standing},
    waiter::Waiter,
};
use crate::{
    error::{Refusal, polled_after_completion},
    limit::{
        algorithm::Algorithm,
        permit::{Grant, Permit},
        permit_request::PermitRequest,
    },
};

/// The future of a limiter. It resolves to the permit of one request, or to a refusal.
///
/// # Cancellation
///
/// The future of a [`LocalLimiter`](super::super::LocalLimiter) joins the queue when it is first polled, and leaves the
/// queue when it is dropped. Dropping it while it is queued spends nothing. Dropping it between the grant and the next
/// poll wastes the permit.
pub struct Acquire {
    stage: Stage,
}

/// In `New` and `Queued`, the queue is `None` after the permits are granted or refused.
enum Stage {
    /// The future was not polled yet.
    New(Option<Arc<dyn AnyQueue>>, PermitRequest),
    /// The timer is boxed because it is large and few waiters have one.
    Queued(Option<Arc<dyn AnyQueue>>, Arc<Waiter>, Option<Pin<Box<Sleep>>>),
    /// `None` after the outcome was returned.
    Ready(Option<Result<Permit<'static>, Refusal>>),
    Custom(Pin<Box<dyn Future<Output = Result<Permit<'static>, Refusal>> + Send>>),
}

impl Acquire {
    /// Creates the future of a custom limiter whose caller has to wait.
    pub fn new<F>(future: F) -> Self
    where
        F: Future<Output = Result<Permit<'static>, Refusal>> + Send + 'static,
    {
        Self { stage: Stage::Custom(Box::pin(future)) }
    }

    /// Creates the future of a custom limiter that decides immediately. Does not allocate.
    #[inline]
    pub fn ready(outcome: Result<Permit<'static>, Refusal>) -> Self {
        Self { stage: Stage::Ready(Some(outcome)) }
    }

    pub(crate) fn queued<A: Algorithm>(queue: Arc<Queue<A>>, request: PermitRequest) -> Self {
        Self { stage: Stage::New(Some(queue), request) }
    }
}

impl Future for Acquire {
    type Output = Result<Permit<'static>, Refusal>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let stage = &mut self.get_mut().stage;
        let (queue, cost, granted_at) = loop {
            match stage {
                Stage::Ready(outcome) => {
                    return Poll::Ready(outcome.take().unwrap_or_else(|| polled_after_completion()));
                }
                Stage::Custom(future) => return future.as_mut().poll(cx),
                Stage::New(queue, request) => {
                    let Some(joining) = queue else { polled_after_completion() };
                    match joining.join(request, Some(cx.waker())) {
                        Ok(Joined::Granted(at)) => break (queue, request.cost(), Ok(at)),
                        Ok(Joined::Queued { waiter, sleeps, unchecked }) => {
                            if unchecked {
                                Arc::clone(joining).start_checks();
                            }
                            *stage = Stage::Queued(queue.take(), waiter, None);
                            if sleeps {
                                return Poll::Pending;
                            }
                        }
                        Err(refusal) => break (queue, request.cost(), Err(refusal)),
                    }
                }
                Stage::Queued(queue, waiter, timer) => {
                    let Some(visited) = queue else { polled_after_completion() };
                    match visited.visit(waiter, cx.waker()) {
                        Ok(Standing::Granted(at)) => break (queue, waiter.cost, Ok(at)),
                        Ok(Standing::Waiting { poll_at, unchecked }) => {
                            if unchecked {
                                Arc::clone(visited).start_checks();
                            }
                            let Some(poll_at) = poll_at else { return Poll::Pending };
                            let sleep = || Box::pin(tokio::time::sleep_until(poll_at));
                            let timer = timer.get_or_insert_with(sleep);
                            if timer.deadline() != poll_at {
                                timer.as_mut().reset(poll_at);
                            }
                            ready!(timer.as_mut().poll(cx));
                        }
                        Err(refusal) => break (queue, waiter.cost, Err(refusal)),
                    }
                }
            }
        };
        // Moves the queue into the permit, which saves a change of the queue's reference count.
        let Some(queue) = queue.take() else { polled_after_completion() };
        Poll::Ready(granted_at.map(|at| Permit::issued(Grant::Shared(queue.issuer(), at), cost)))
    }
}

impl Drop for Acquire {
    #[inline]
    fn drop(&mut self) {
        if let Stage::Queued(Some(queue), waiter, _) = &self.stage {
            queue.leave(waiter);
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}
