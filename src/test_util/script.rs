//! What the clones and the calls of one scripted service share.

use std::{
    any::Any,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::request::Parts;
use tokio::sync::Semaphore;

use super::{Answer, Seen};
use crate::{call::CallContext, clock, error::BoxError};

pub(super) struct Script {
    answer: Box<dyn Fn(&Seen) -> Answer + Send + Sync>,
    pub(super) pending_polls: u32,
    pub(super) unready: Option<Box<dyn Fn() -> BoxError + Send + Sync>>,
    most: usize,
    pub(super) permits: Arc<Semaphore>,
    seen: Mutex<Vec<Seen>>,
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl Script {
    pub(super) fn new(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self {
            answer: Box::new(answer),
            pending_polls: 0,
            unready: None,
            most: Semaphore::MAX_PERMITS,
            permits: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            seen: Mutex::default(),
            kept: Mutex::default(),
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

    pub(super) fn set_permits(&mut self, permits: usize) {
        (self.most, self.permits) = (permits, Arc::new(Semaphore::new(permits)));
    }

    pub(super) fn permits_taken(&self) -> usize {
        self.most - self.permits.available_permits()
    }
}
