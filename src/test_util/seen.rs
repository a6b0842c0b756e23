use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, request::Parts};

use crate::clock::Instant;

/// One request as it came in.
///
/// Its `Debug` shows the names of its headers and none of their values, and not its query: a key may be in either, and
/// what a test prints is in a log for long. Both are in [`head`](Self::head).
#[derive(Clone)]
#[non_exhaustive]
pub struct Seen {
    /// From 1, in the order of arrival.
    pub number: usize,
    /// When it came, on tokio's clock.
    pub at: Instant,
    /// Method, URI, version, headers and extensions.
    pub head: Parts,
    /// The number of the attempt in its call, from 1; none where no layer of this crate tells it, as at a server.
    pub attempt: Option<u32>,
    /// None until it was read to its end.
    pub body: Option<Bytes>,
    /// What followed the body.
    pub trailers: Option<HeaderMap>,
}

impl Seen {
    /// A header's value, if it has one and that is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seen")
            .field("number", &self.number)
            .field("at", &self.at)
            .field("attempt", &self.attempt)
            .field("method", &self.head.method)
            .field("path", &self.head.uri.path())
            .field("headers", &self.head.headers.keys().collect::<Vec<_>>())
            .field("body_bytes", &self.body.as_ref().map(Bytes::len))
            .field("trailers", &self.trailers.as_ref().map(|trailers| trailers.keys().collect::<Vec<_>>()))
            .finish_non_exhaustive()
    }
}
