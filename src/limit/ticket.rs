use std::{
    fmt,
    future::Future,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::time::Sleep;

use super::{
    PermitRequest, Refusal,
    meter::Meter,
    queue::{Joined, Queue, Standing},
    seat::{Seat, State},
};

/// The wait of one request for its permits.
///
/// It takes its place in the line when it is first polled, and gives it up when it is dropped. Dropping it
/// while it waits spends nothing and lets the next in line go; dropping it between the grant and the poll that
/// would have told loses the grant.
pub struct Acquire<M: Meter> {
    queue: Arc<Queue<M>>,
    place: Place,
    /// The head's alone, and large: all others wait without one.
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum Place {
    /// Not polled yet.
    None(PermitRequest),
    At(u64, Arc<Seat>, NonZeroU32),
    /// Granted or refused.
    Left,
}

impl<M: Meter> Acquire<M> {
    pub(crate) fn new(queue: Arc<Queue<M>>, ask: PermitRequest) -> Self {
        Self { queue, place: Place::None(ask), timer: None }
    }
}

impl<M: Meter> Future for Acquire<M> {
    type Output = Result<(), Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let outcome = loop {
            match &this.place {
                Place::None(ask) => match this.queue.join(ask, cx.waker()) {
                    Ok(Joined::Granted) => break Ok(()),
                    Ok(Joined::Seated { place, seat }) => {
                        // Woken already, and not before others.
                        let called = seat.state() != State::Waiting;
                        this.place = Place::At(place, seat, ask.cost);
                        if called {
                            return Poll::Pending;
                        }
                    }
                    Err(refusal) => break Err(refusal),
                },
                Place::At(place, seat, cost) => match this.queue.visit(*place, seat, *cost, cx.waker()) {
                    Standing::Granted => break Ok(()),
                    Standing::Refused(refusal) => break Err(refusal),
                    Standing::Behind => return Poll::Pending,
                    Standing::Head { due } => {
                        let sleep = || Box::pin(tokio::time::sleep_until(due));
                        let timer = this.timer.get_or_insert_with(sleep);
                        if timer.deadline() != due {
                            timer.as_mut().reset(due);
                        }
                        ready!(timer.as_mut().poll(cx));
                    }
                },
                Place::Left => return Poll::Pending,
            }
        };
        this.place = Place::Left;
        this.timer = None;
        Poll::Ready(outcome)
    }
}

impl<M: Meter> Drop for Acquire<M> {
    fn drop(&mut self) {
        if let Place::At(place, seat, cost) = &self.place {
            self.queue.leave(*place, seat, *cost);
        }
    }
}

impl<M: Meter> fmt::Debug for Acquire<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("place", &self.place).finish_non_exhaustive()
    }
}
