use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, request::Parts};

use crate::clock::Instant;

/// A request that a [`ScriptedService`](super::ScriptedService) received.
///
/// `Debug` shows the names of the headers. It omits their values and the query, because both may contain keys.
/// [`head`](Self::head) contains everything.
#[derive(Clone)]
#[non_exhaustive]
pub struct Seen {
    /// The number of the request in the order of arrival, starting at 1.
    pub number: usize,
    /// The time of arrival on tokio's clock.
    pub at: Instant,
    /// The method, URI, version, headers and extensions.
    pub head: Parts,
    /// The number of the attempt within its call, starting at 1. `None` if no layer of this crate set it, for example
    /// because a server received the request over a connection.
    pub attempt: Option<u32>,
    /// The body. `None` until the body has been read completely.
    pub body: Option<Bytes>,
    /// The trailers after the body.
    pub trailers: Option<HeaderMap>,
}

impl Seen {
    /// Returns the value of a header, if it is present and text.
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
