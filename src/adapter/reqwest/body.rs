use std::{
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};

/// A request's body that more than one thread may look at: reqwest asks for that and never does it, so nobody waits
/// for the lock.
pub(super) struct Shared<B>(pub(super) Mutex<Pin<Box<B>>>);

impl<B> Shared<B> {
    fn look(&self) -> MutexGuard<'_, Pin<Box<B>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Body> Body for Shared<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let inner = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Free for `Bytes`.
        let bytes = |mut data: B::Data| data.copy_to_bytes(data.remaining());
        inner.as_mut().poll_frame(cx).map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.look().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.look().size_hint()
    }
}
