use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::Sleep;

use super::{
    Ask, Refusal,
    meter::Meter,
    queue::{Joined, Queue, Standing},
    seat::{Seat, State},
};

pin_project! {
    /// The wait of one request for its permits.
    ///
    /// It takes its place in the line when it is first polled, and gives it up when it is dropped. Dropping it
    /// while it waits spends nothing and lets the next in line go; dropping it between the grant and the poll that
    /// would have told loses the grant.
    pub struct Acquire<M: Meter> {
        queue: Arc<Queue<M>>,
        ask: Ask,
        place: Place,
        #[pin]
        timer: Option<Sleep>,
    }

    impl<M: Meter> PinnedDrop for Acquire<M> {
        fn drop(this: Pin<&mut Self>) {
            if let Place::At(place, seat) = &this.place {
                this.queue.leave(*place, seat, this.ask.cost);
            }
        }
    }
}

#[derive(Debug)]
enum Place {
    /// Not polled yet.
    None,
    At(u64, Arc<Seat>),
    /// Granted or refused.
    Left,
}

impl<M: Meter> Acquire<M> {
    pub(crate) fn new(queue: Arc<Queue<M>>, ask: Ask) -> Self {
        Self { queue, ask, place: Place::None, timer: None }
    }
}

impl<M: Meter> Future for Acquire<M> {
    type Output = Result<(), Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let outcome = loop {
            match this.place {
                Place::None => match this.queue.join(this.ask, cx.waker()) {
                    Ok(Joined::Granted) => break Ok(()),
                    Ok(Joined::Seated { place, seat }) => {
                        // Woken already, and not before others.
                        let called = seat.state() != State::Waiting;
                        *this.place = Place::At(place, seat);
                        if called {
                            return Poll::Pending;
                        }
                    }
                    Err(refusal) => break Err(refusal),
                },
                Place::At(place, seat) => match this.queue.visit(*place, seat, this.ask.cost, cx.waker()) {
                    Standing::Granted => break Ok(()),
                    Standing::Refused(refusal) => break Err(refusal),
                    Standing::Behind => return Poll::Pending,
                    Standing::Head { due } => {
                        match this.timer.as_mut().as_pin_mut() {
                            Some(timer) if timer.deadline() == due => {}
                            Some(timer) => timer.reset(due),
                            None => this.timer.set(Some(tokio::time::sleep_until(due))),
                        }
                        if let Some(timer) = this.timer.as_mut().as_pin_mut() {
                            ready!(timer.poll(cx));
                        }
                    }
                },
                Place::Left => return Poll::Pending,
            }
        };
        *this.place = Place::Left;
        this.timer.set(None);
        Poll::Ready(outcome)
    }
}

impl<M: Meter> fmt::Debug for Acquire<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("place", &self.place).finish_non_exhaustive()
    }
}
