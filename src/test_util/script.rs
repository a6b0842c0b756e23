//! What the clones and the calls of one scripted service share.

use std::{
    any::Any,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use http::request::Parts;

use super::{Answer, Seen};
use crate::{call::CallContext, clock, error::BoxError};

pub(super) struct Script {
    answer: Box<dyn Fn(&Seen) -> Answer + Send + Sync>,
    pub(super) pending_polls: u32,
    pub(super) unready: Option<Box<dyn Fn() -> BoxError + Send + Sync>>,
    pub(super) permits: Option<usize>,
    seen: Mutex<Vec<Seen>>,
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
    room: Mutex<Room>,
}

#[derive(Default)]
struct Room {
    taken: usize,
    waiting: Vec<Waker>,
}

impl Script {
    pub(super) fn new(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self {
            answer: Box::new(answer),
            pending_polls: 0,
            unready: None,
            permits: None,
            seen: Mutex::default(),
            kept: Mutex::default(),
            room: Mutex::default(),
        }
    }

    /// Notes the request and says what comes of it. Its place in the record is its number less one.
    pub(super) fn answer(&self, head: Parts) -> (usize, Answer) {
        let attempt = head.extensions.get::<CallContext>().map(CallContext::attempt);
        let mut all = self.seen();
        let place = all.len();
        let seen = Seen { number: place + 1, at: clock::now(), head, attempt, body: None, trailers: None };
        all.push(seen.clone());
        drop(all);
        (place, (self.answer)(&seen))
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn keep(&self, body: Box<dyn Any + Send>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(body);
    }

    pub(super) fn poll_permit(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut room = self.room();
        if self.permits.is_some_and(|permits| room.taken >= permits) {
            if !room.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                room.waiting.push(cx.waker().clone());
            }
            return Poll::Pending;
        }
        room.taken += 1;
        Poll::Ready(())
    }

    pub(super) fn permits_taken(&self) -> usize {
        self.room().taken
    }

    pub(super) fn release(&self) {
        let mut room = self.room();
        room.taken -= 1;
        // Whoever waited and was dropped would swallow the only wake-up.
        let waiting = std::mem::take(&mut room.waiting);
        drop(room);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The permit of a call that is under way.
pub(super) struct Held(pub(super) Arc<Script>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.release();
    }
}
