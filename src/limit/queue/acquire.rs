use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::time::Sleep;

use super::{
    Joined, Queue, Standing,
    waiter::{State, Waiter},
};
use crate::{
    error::{Refusal, polled_after_completion},
    limit::{algorithm::Algorithm, limiter::PermitRequest, permit::Permit},
};

/// The future of a [`LocalLimiter`](super::super::LocalLimiter): waits for the permit of one request.
///
/// # Cancellation
///
/// It joins the queue when it is first polled, and leaves it when it is dropped. Dropping it while it is queued spends
/// nothing. Dropping it between the grant and the next poll wastes the permit.
pub struct Acquire<A: Algorithm> {
    queue: Arc<Queue<A>>,
    stage: Stage,
    /// Only the head has one, because it is large.
    timer: Option<Pin<Box<Sleep>>>,
}

enum Stage {
    /// Not polled yet.
    New(PermitRequest),
    Queued(Arc<Waiter>),
    Completed,
}

impl<A: Algorithm> Acquire<A> {
    pub(crate) fn new(queue: Arc<Queue<A>>, request: PermitRequest) -> Self {
        Self { queue, stage: Stage::New(request), timer: None }
    }
}

impl<A: Algorithm> Future for Acquire<A> {
    type Output = Result<Permit<'static>, Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (cost, outcome) = loop {
            match &this.stage {
                Stage::New(request) => match this.queue.join(request, Some(cx.waker())) {
                    Ok(Joined::Granted(at)) => break (request.cost(), Ok(at)),
                    Ok(Joined::Queued(waiter)) => {
                        // Granted and woken already, so that the waiters before it are polled first.
                        let woken = waiter.state() != State::Waiting;
                        this.stage = Stage::Queued(waiter);
                        if woken {
                            return Poll::Pending;
                        }
                    }
                    Err(refusal) => break (request.cost(), Err(refusal)),
                },
                Stage::Queued(waiter) => match this.queue.visit(waiter, cx.waker()) {
                    Ok(Standing::Granted(at)) => break (waiter.cost, Ok(at)),
                    Ok(Standing::Behind) => return Poll::Pending,
                    Ok(Standing::Head { poll_at }) => {
                        let sleep = || Box::pin(tokio::time::sleep_until(poll_at));
                        let timer = this.timer.get_or_insert_with(sleep);
                        if timer.deadline() != poll_at {
                            timer.as_mut().reset(poll_at);
                        }
                        ready!(timer.as_mut().poll(cx));
                    }
                    Err(refusal) => break (waiter.cost, Err(refusal)),
                },
                Stage::Completed => polled_after_completion(),
            }
        };
        this.stage = Stage::Completed;
        this.timer = None;
        Poll::Ready(outcome.map(|granted_at| Queue::permit(&this.queue, cost, granted_at)))
    }
}

impl<A: Algorithm> Drop for Acquire<A> {
    fn drop(&mut self) {
        if let Stage::Queued(waiter) = &self.stage {
            self.queue.leave(waiter);
        }
    }
}

impl<A: Algorithm> fmt::Debug for Acquire<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::New(_) => "new",
            Stage::Queued(..) => "queued",
            Stage::Completed => "completed",
        };
        f.debug_struct("Acquire").field("stage", &stage).finish_non_exhaustive()
    }
}
