//! The body of a request, as its attempts pass it on from one to the next.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::recording::{Recorded, Recording};

/// The body that the attempts of a call share.
pub(super) struct Shared<B> {
    limit: usize,
    announced: Option<u64>,
    source: Mutex<Source<B>>,
}

pub(super) enum Source<B> {
    /// Nothing was read from it. `None` while an attempt has it.
    Unread(Option<B>),
    /// What an attempt has read so far. Kept here, because the request that carries the body moves from layer to layer.
    Recording(Recording),
    /// An attempt has read it to its end.
    Whole(Recorded),
    /// It cannot be sent again.
    Lost {
        /// It returned an error.
        failed: bool,
    },
}

impl<B> Shared<B> {
    pub(super) fn new(limit: usize, announced: Option<u64>) -> Arc<Self> {
        Arc::new(Self { limit, announced, source: Mutex::new(Source::Unread(None)) })
    }

    /// Ignores poisoning, because nothing panics halfway through a change.
    pub(super) fn lock(&self) -> MutexGuard<'_, Source<B>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, source: Source<B>) {
        let old = mem::replace(&mut *self.lock(), source);
        // Outside the lock, because it may run the drop of a custom body.
        drop(old);
    }

    /// Completes the recording, if there is one.
    fn finish(&self) {
        let mut source = self.lock();
        if let Source::Recording(recording) = &mut *source {
            let recorded = mem::take(recording).finish();
            *source = Source::Whole(recorded);
        }
    }
}

/// A body that nothing was read from. Gives it back if it is dropped before the first poll.
pub(super) struct Unread<B> {
    body: Option<B>,
    shared: Arc<Shared<B>>,
}

impl<B> Unread<B> {
    pub(super) fn new(body: B, shared: Arc<Shared<B>>) -> Self {
        Self { body: Some(body), shared }
    }

    /// Returns the body, or `None` after [`start`](Self::start).
    pub(super) fn body(&self) -> Option<&B> {
        self.body.as_ref()
    }
}

impl<B: Body> Unread<B> {
    /// Takes the body for reading, with its recorder. A body that announces more than the limit is not recorded.
    pub(super) fn start(&mut self) -> Option<(B, Recorder<B>)> {
        let body = self.body.take()?;
        let hint = body.size_hint();
        if usize::try_from(hint.lower()).is_ok_and(|least| least <= self.shared.limit) {
            let recording = Recording::new(self.shared.limit, hint.exact().is_some());
            self.shared.put(Source::Recording(recording));
        }
        Some((body, Recorder { shared: Arc::clone(&self.shared) }))
    }
}

impl<B> Drop for Unread<B> {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            self.shared.put(Source::Unread(Some(body)));
        }
    }
}

/// Records what an attempt reads.
pub(super) struct Recorder<B> {
    shared: Arc<Shared<B>>,
}

impl<B> Recorder<B> {
    /// Records the result of a poll. `ended` states that it is the last one.
    pub(super) fn record<E>(&self, polled: Option<&Result<Frame<Bytes>, E>>, ended: bool) {
        let lost = match (polled, &mut *self.shared.lock()) {
            (Some(Ok(frame)), Source::Recording(recording)) => {
                (!recording.push(frame)).then_some(Source::Lost { failed: false })
            }
            (Some(Err(_)), _) => Some(Source::Lost { failed: true }),
            _ => None,
        };
        if let Some(lost) = lost {
            self.shared.put(lost);
        }
        if ended {
            self.shared.finish();
        }
    }
}

/// Loses a body that was read in part. Over HTTP/1 the connection stops reading after the announced length, without a
/// poll for the end, so a recording of that length is complete.
impl<B> Drop for Recorder<B> {
    fn drop(&mut self) {
        let recorded = match &*self.shared.lock() {
            Source::Recording(recording) => Some(recording.len()),
            _ => return,
        };
        match recorded == self.shared.announced {
            true => self.shared.finish(),
            false => self.shared.put(Source::Lost { failed: false }),
        }
    }
}
