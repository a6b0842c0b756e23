use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use http_body::Body;

use super::{
    super::body::{MakeBody, take},
    recording::{Recorded, Recording},
};
use crate::call::CallContext;

/// The body that all attempts of a call share.
pub(super) struct Shared<B> {
    pub(super) limit: usize,
    pub(super) announced: Option<u64>,
    /// Creates the body again. The body is then not recorded.
    pub(super) make: Option<MakeBody>,
    /// The call of the request, which records the progress of the body.
    pub(super) call: CallContext,
    pub(super) source: Mutex<Source<B>>,
}

pub(super) enum Source<B> {
    /// Contains the body if nothing was read from it. Contains `None` while an attempt holds the body, and after an
    /// attempt has read part of it.
    Unread(Option<B>),
    /// An attempt has read the body completely.
    Whole(Recorded),
    /// The body returned an error.
    Failed,
}

impl<B> Shared<B> {
    /// Ignores the poisoning of the lock, because no code panics while it changes the value.
    pub(super) fn lock(&self) -> MutexGuard<'_, Source<B>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, source: Source<B>) {
        let old = mem::replace(&mut *self.lock(), source);
        // Drops the old body outside the lock, because a custom body may run arbitrary code in its `Drop`.
        drop(old);
    }
}

impl<B: 'static> Shared<B> {
    /// Creates the body again.
    pub(super) fn remake(&self) -> Option<B> {
        take(&mut Some((self.make.as_ref()?)()))
    }
}

impl<B: Body> Shared<B> {
    /// Starts the recording of a body, unless its reported length exceeds the limit or the body can be created again.
    pub(super) fn recording(&self, body: &B) -> Option<Recording> {
        let hint = body.size_hint();
        let fits = usize::try_from(hint.lower()).is_ok_and(|least| least <= self.limit);
        (fits && self.make.is_none()).then(|| Recording::new(self.limit, hint.exact().is_some()))
    }
}
