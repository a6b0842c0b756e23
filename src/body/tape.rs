use std::{fmt, mem, sync::Arc};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};

/// Chunks under 64 bytes that follow another are gathered: kept one by one, each costs 32 bytes of bookkeeping, and a
/// body written byte by byte would hold 32 times its cap.
const SMALL: usize = 64;

/// Why a request's body can't be sent again.
///
/// ```
/// use tower_outbound::{Body, body::{NotReplayable, ReplayBody}};
///
/// let (_sent, replay) = ReplayBody::record(Body::from("hello"), 4);
/// assert_eq!(replay.body().unwrap_err(), NotReplayable::TooLarge { limit: 4 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotReplayable {
    /// It is larger than the cap of the recording, and reading it has begun.
    TooLarge {
        /// The cap, in bytes of data and trailers together.
        limit: usize,
    },
    /// It was not read to its end: the attempt failed part way, or still holds the body.
    Incomplete,
    /// The body itself failed with an error.
    Failed,
}

impl fmt::Display for NotReplayable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { limit } => {
                write!(f, "request body is larger than the {limit} bytes kept for a retry")
            }
            Self::Incomplete => f.write_str("request body was not read to its end"),
            Self::Failed => f.write_str("request body failed while it was read"),
        }
    }
}

impl std::error::Error for NotReplayable {}

/// Takes down the frames of a body until it ends or is over the limit.
#[derive(Debug)]
pub(super) struct Recording {
    /// Bytes that may still come.
    room: usize,
    len: u64,
    /// Whether the source knew its length, which trailers don't change.
    exact: bool,
    /// On its own, so that a body of one chunk needs no list.
    first: Option<Bytes>,
    chunks: Vec<Bytes>,
    small: BytesMut,
    trailers: Option<HeaderMap>,
}

impl Recording {
    pub(super) fn new(limit: usize, exact: bool) -> Self {
        Self {
            room: limit,
            len: 0,
            exact,
            first: None,
            chunks: Vec::new(),
            small: BytesMut::new(),
            trailers: None,
        }
    }

    /// False when the frame doesn't fit: the recording is then worth nothing.
    pub(super) fn push(&mut self, frame: &Frame<Bytes>) -> bool {
        let size = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => data.len(),
            (_, Some(trailers)) => {
                trailers.iter().fold(0, |sum: usize, (n, v)| sum.saturating_add(n.as_str().len() + v.len()))
            }
            _ => 0,
        };
        let Some(room) = self.room.checked_sub(size) else { return false };
        self.room = room;
        if let Some(data) = frame.data_ref() {
            self.len += size as u64;
            self.push_data(data);
        } else {
            self.trailers = frame.trailers_ref().cloned();
        }
        true
    }

    fn push_data(&mut self, data: &Bytes) {
        // An endless stream of nothing must not fill the memory.
        if data.is_empty() {
        } else if self.first.is_none() {
            self.first = Some(data.clone());
        } else if data.len() < SMALL {
            self.small.extend_from_slice(data);
        } else {
            self.flush();
            self.chunks.push(data.clone());
        }
    }

    fn flush(&mut self) {
        if !self.small.is_empty() {
            self.chunks.push(mem::take(&mut self.small).freeze());
        }
    }

    /// How much data there is so far.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn finish(mut self) -> Tape {
        self.flush();
        let exact = self.exact || self.trailers.is_none();
        let rest = (!self.chunks.is_empty() || self.trailers.is_some())
            .then(|| Arc::new(Rest { chunks: self.chunks, trailers: self.trailers }));
        Tape { first: self.first, rest, at: 0, left: self.len, exact }
    }
}

/// A whole body and how far it has been played; a clone made before the first `next` plays it from the start.
#[derive(Clone)]
pub(super) struct Tape {
    first: Option<Bytes>,
    /// `None` when nothing of it is left to play.
    rest: Option<Arc<Rest>>,
    at: usize,
    left: u64,
    /// Whether a length may go before it: not before trailers that came after a body of unknown length, for over
    /// HTTP/1 they would be lost.
    exact: bool,
}

struct Rest {
    chunks: Vec<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Tape {
    pub(super) fn is_end(&self) -> bool {
        self.first.is_none() && self.rest.is_none()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        if self.exact {
            return SizeHint::with_exact(self.left);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(self.left);
        hint
    }
}

impl Iterator for Tape {
    type Item = Frame<Bytes>;

    fn next(&mut self) -> Option<Frame<Bytes>> {
        if let Some(first) = self.first.take() {
            self.left = self.left.saturating_sub(first.len() as u64);
            return Some(Frame::data(first));
        }
        let rest = self.rest.as_ref()?;
        let Some(chunk) = rest.chunks.get(self.at).cloned() else {
            let trailers = rest.trailers.clone();
            self.rest = None;
            return trailers.map(Frame::trailers);
        };
        self.at += 1;
        self.left = self.left.saturating_sub(chunk.len() as u64);
        if self.at >= rest.chunks.len() && rest.trailers.is_none() {
            self.rest = None;
        }
        Some(Frame::data(chunk))
    }
}

/// Shows how much is left, never the content.
impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tape").field("bytes_left", &self.left).field("is_end", &self.is_end()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &'static str) -> Frame<Bytes> {
        Frame::data(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn one_chunk_is_kept_by_reference_and_needs_no_list() {
        let sent = Bytes::from(vec![1; 10]);
        let mut recording = Recording::new(10, false);
        assert!(recording.push(&Frame::data(sent.clone())));
        let mut tape = recording.finish();
        assert!(tape.rest.is_none());
        assert_eq!(tape.size_hint().exact(), Some(10));
        let played = tape.next().unwrap().into_data().unwrap();
        assert_eq!(played.as_ptr(), sent.as_ptr());
        assert!(tape.is_end());
        assert!(tape.next().is_none());
    }

    #[test]
    fn small_chunks_are_gathered_and_empty_ones_dropped() {
        let mut recording = Recording::new(1000, false);
        for _ in 0..100 {
            assert!(recording.push(&data("")));
            assert!(recording.push(&data("x")));
        }
        assert!(recording.push(&Frame::data(Bytes::from(vec![b'y'; SMALL]))));
        assert!(recording.push(&data("z")));
        assert_eq!(recording.chunks.len(), 2);
        let all: Vec<u8> = recording.finish().flat_map(|frame| frame.into_data().unwrap()).collect();
        assert_eq!(all, [vec![b'x'; 100], vec![b'y'; SMALL], vec![b'z']].concat());
    }

    #[test]
    fn trailers_count_and_are_the_end() {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", http::HeaderValue::from_static("12345"));
        assert!(!Recording::new(9, false).push(&Frame::trailers(trailers.clone())));
        let mut recording = Recording::new(13, false);
        assert!(recording.push(&data("abc")));
        assert!(recording.push(&Frame::trailers(trailers.clone())));
        let mut tape = recording.finish();
        assert_eq!((tape.size_hint().lower(), tape.size_hint().exact()), (3, None));
        assert!(tape.next().unwrap().is_data());
        assert!(!tape.is_end());
        assert_eq!(tape.next().unwrap().into_trailers().unwrap(), trailers);
        assert!(tape.is_end());
    }

    #[test]
    fn debug_has_no_content() {
        let mut recording = Recording::new(100, false);
        assert!(recording.push(&data("secret")));
        assert!(!format!("{:?}", recording.finish()).contains("secret"));
    }
}
