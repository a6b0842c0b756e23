use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use http_body::Body;

use super::recording::{Recorded, Recording};

/// The body that the attempts of a call share.
pub(super) struct Shared<B> {
    pub(super) limit: usize,
    pub(super) announced: Option<u64>,
    pub(super) source: Mutex<Source<B>>,
}

pub(super) enum Source<B> {
    /// Nothing was read from it. `None` while an attempt has it, and after an attempt has read a part of it.
    Unread(Option<B>),
    /// An attempt has read it to its end.
    Whole(Recorded),
    /// It returned an error.
    Failed,
}

impl<B> Shared<B> {
    /// Ignores poisoning, because nothing panics halfway through a change.
    pub(super) fn lock(&self) -> MutexGuard<'_, Source<B>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, source: Source<B>) {
        let old = mem::replace(&mut *self.lock(), source);
        // Drops the body outside the lock, because a custom body may run any code in its drop.
        drop(old);
    }
}

impl<B: Body> Shared<B> {
    /// Starts the recording of a body, unless it announces more than the limit.
    pub(super) fn recording(&self, body: &B) -> Option<Recording> {
        let hint = body.size_hint();
        let fits = usize::try_from(hint.lower()).is_ok_and(|least| least <= self.limit);
        fits.then(|| Recording::new(self.limit, hint.exact().is_some()))
    }
}
