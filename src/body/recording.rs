use std::{
    collections::VecDeque,
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use super::body::MakeBody;
use crate::call::CallContext;

/// Chunks under 64 bytes are merged, except for the first chunk. Each recorded chunk needs 32 bytes of bookkeeping, so
/// a body of one-byte chunks would otherwise take 32 times its limit.
const SMALL: usize = 64;

/// The body that all attempts of a call share.
pub(super) struct Shared<B> {
    pub(super) limit: usize,
    /// The `content-length` of the request.
    pub(super) length: Option<u64>,
    /// Whether trailers may follow the body.
    pub(super) may_have_trailers: bool,
    /// Creates the body again. The body is then not recorded.
    pub(super) make: Option<MakeBody>,
    /// The call of the request, which records the progress of the body.
    pub(super) call: CallContext,
    pub(super) source: Mutex<Source<B>>,
    /// The number of bodies that were created.
    pub(super) bodies: AtomicU32,
}

pub(super) enum Source<B> {
    /// Contains the body if nothing was read from it. Contains `None` while an attempt holds the body, and after an
    /// attempt has read part of it.
    Unread(Option<B>),
    /// An attempt has read the body completely.
    Whole(Recorded),
    /// The body returned an error. This state is final.
    Failed,
}

impl<B> Shared<B> {
    /// Ignores the poisoning of the lock, because no code panics while it changes the value.
    pub(super) fn lock(&self) -> MutexGuard<'_, Source<B>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of a new body, starting at 1.
    pub(super) fn next_number(&self) -> u32 {
        self.bodies.fetch_add(1, Relaxed) + 1
    }

    /// Returns whether the body with this number is that of the latest attempt. After an early response, a connection
    /// may still send the body of an earlier attempt.
    pub(super) fn is_latest(&self, number: u32) -> bool {
        self.bodies.load(Relaxed) == number
    }

    /// Starts the recording of a body, unless its reported length exceeds the limit or the body can be created again.
    pub(super) fn recording(&self, hint: &SizeHint) -> Option<Recording> {
        let fits = usize::try_from(hint.lower()).is_ok_and(|least| least <= self.limit);
        (fits && self.make.is_none()).then(|| Recording::new(self.limit, hint.exact().is_some()))
    }

    pub(super) fn put(&self, source: Source<B>) {
        let mut shared = self.lock();
        // An earlier attempt may return its unread body after the body of a later attempt has failed.
        let old = if matches!(*shared, Source::Failed) { source } else { mem::replace(&mut *shared, source) };
        drop(shared);
        // Drops the old body outside the lock, because a custom body may run arbitrary code in its `Drop`.
        drop(old);
    }
}

/// Records the frames of a body.
pub(super) struct Recording {
    /// The number of bytes that may still be recorded.
    room: usize,
    recorded: Recorded,
    /// Small chunks after those of `recorded`.
    small: BytesMut,
}

impl Recording {
    fn new(limit: usize, exact: bool) -> Self {
        Self { room: limit, recorded: Recorded { exact, ..Recorded::default() }, small: BytesMut::new() }
    }

    /// Adds a frame. Returns `false` if the recording exceeds its limit. The recording is then unusable.
    pub(super) fn push(&mut self, frame: &Frame<Bytes>) -> bool {
        let fields = |trailers: &HeaderMap| trailers.iter().map(|(n, v)| n.as_str().len() + v.len()).sum();
        let trailers = frame.trailers_ref();
        let size = frame.data_ref().map_or_else(|| trailers.map_or(0, fields), Bytes::len);
        let Some(room) = self.room.checked_sub(size) else { return false };
        self.room = room;
        if let Some(data) = frame.data_ref() {
            self.recorded.left += size as u64;
            self.push_data(data);
        } else {
            self.recorded.trailers = trailers.cloned().map(Box::new);
        }
        true
    }

    fn push_data(&mut self, data: &Bytes) {
        // Skips empty frames, because an endless number of them would fill the memory.
        if data.is_empty() {
        } else if self.recorded.first.is_none() {
            self.recorded.first = Some(data.clone());
        } else if data.len() < SMALL {
            self.small.extend_from_slice(data);
        } else {
            self.flush();
            self.recorded.rest.push_back(data.clone());
        }
    }

    fn flush(&mut self) {
        if !self.small.is_empty() {
            self.recorded.rest.push_back(mem::take(&mut self.small).freeze());
        }
    }

    pub(super) fn finish(mut self) -> Recorded {
        self.flush();
        self.recorded
    }
}

/// A complete recording, as an iterator over its remaining frames. If it is cloned before the first call of `next`, the
/// clone returns all frames.
#[derive(Clone, Default)]
pub(super) struct Recorded {
    /// The first chunk. This chunk is stored outside the list, so that a body of one chunk needs no list.
    first: Option<Bytes>,
    rest: VecDeque<Bytes>,
    /// The trailers. Boxed, because few requests have trailers, and an unboxed map would take memory in every
    /// recording.
    trailers: Option<Box<HeaderMap>>,
    /// The length of the remaining data.
    left: u64,
    /// Whether the source reported an exact length.
    exact: bool,
}

impl Recorded {
    pub(super) fn of(data: Bytes) -> Self {
        Self { left: data.len() as u64, first: Some(data), exact: true, ..Self::default() }
    }

    pub(super) fn is_end(&self) -> bool {
        self.first.is_none() && self.rest.is_empty() && self.trailers.is_none()
    }

    /// Returns an exact length for a recording with trailers only if the source did, because HTTP/1 drops the trailers
    /// of a body with an exact length.
    pub(super) fn size_hint(&self) -> SizeHint {
        if self.exact || self.trailers.is_none() {
            return SizeHint::with_exact(self.left);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(self.left);
        hint
    }
}

impl Iterator for Recorded {
    type Item = Frame<Bytes>;

    fn next(&mut self) -> Option<Frame<Bytes>> {
        if let Some(data) = self.first.take().or_else(|| self.rest.pop_front()) {
            self.left = self.left.saturating_sub(data.len() as u64);
            return Some(Frame::data(data));
        }
        self.trailers.take().map(|trailers| Frame::trailers(*trailers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &'static str) -> Frame<Bytes> {
        Frame::data(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn recording_of_one_chunk_needs_no_copy_and_no_list() {
        let sent = Bytes::from(vec![1; 10]);
        let mut recording = Recording::new(10, false);
        assert!(recording.push(&Frame::data(sent.clone())));
        let mut recorded = recording.finish();
        assert_eq!(recorded.rest.capacity(), 0);
        assert_eq!(recorded.size_hint().exact(), Some(10));
        let played = recorded.next().unwrap().into_data().unwrap();
        assert_eq!(played.as_ptr(), sent.as_ptr());
        assert!(recorded.is_end());
        assert!(recorded.next().is_none());
    }

    #[test]
    fn recording_merges_small_chunks_and_drops_empty_ones() {
        let mut recording = Recording::new(1000, false);
        for _ in 0..100 {
            assert!(recording.push(&data("")));
            assert!(recording.push(&data("x")));
        }
        assert!(recording.push(&Frame::data(Bytes::from(vec![b'y'; SMALL]))));
        assert!(recording.push(&data("z")));
        assert_eq!(recording.recorded.rest.len(), 2);
        let all: Vec<u8> = recording.finish().flat_map(|frame| frame.into_data().unwrap()).collect();
        assert_eq!(all, [vec![b'x'; 100], vec![b'y'; SMALL], vec![b'z']].concat());
    }

    #[test]
    fn recording_counts_trailers_toward_its_limit_and_returns_them_last() {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", http::HeaderValue::from_static("12345"));
        assert!(!Recording::new(9, false).push(&Frame::trailers(trailers.clone())));
        let mut recording = Recording::new(13, false);
        assert!(recording.push(&data("abc")));
        assert!(recording.push(&Frame::trailers(trailers.clone())));
        let mut recorded = recording.finish();
        assert_eq!((recorded.size_hint().lower(), recorded.size_hint().exact()), (3, None));
        assert!(recorded.next().unwrap().is_data());
        assert!(!recorded.is_end());
        assert_eq!(recorded.next().unwrap().into_trailers().unwrap(), trailers);
        assert!(recorded.is_end());
    }
}
