//! A row of the table: a layer in one of its ways, whatever its type.

use std::any::type_name;

use bytes::Bytes;
use http::{Request, Response};
use tower::{Layer, Service, util::BoxCloneService};
use tower_outbound::{Body, BoxError};

use super::{
    ELSEWHERE, URI,
    books::Books,
    moody::Moody,
    sent::{Client, Erased},
};

/// Where the error of a service below that does not get ready comes out, and as what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unready {
    /// As it is, from `poll_ready`.
    Passes,
    /// As an `Error` that it is the source of, from `poll_ready`.
    Fails,
    /// Fails in the call, with an `Error` of this kind.
    InCall(&'static str),
    /// The same, once a few attempts have met with it.
    AfterAttempts(&'static str),
}

pub(crate) struct Row {
    pub(crate) label: String,
    /// The layer's type.
    pub(crate) layer: &'static str,
    pub(crate) uri: &'static str,
    pub(crate) unready: Unready,
    make: Box<dyn Fn() -> Stack>,
}

type Over = Box<dyn Fn(Moody) -> Client>;

pub(crate) struct Stack {
    over: Over,
    pub(crate) books: Books,
}

impl Row {
    /// The layer over a service; nothing is shared with another one that was made.
    pub(crate) fn over(&self, moody: &Moody) -> (Client, Books) {
        let Stack { over, books } = (self.make)();
        (over(moody.clone()), books)
    }

    /// Whether it sends again what failed in passing.
    pub(crate) fn resends(&self) -> bool {
        matches!(self.unready, Unready::AfterAttempts(_))
    }

    pub(crate) fn elsewhere(self) -> Self {
        Self { uri: ELSEWHERE, ..self }
    }

    pub(crate) fn unready(self, unready: Unready) -> Self {
        Self { unready, ..self }
    }
}

pub(crate) fn row<L, S, R>(way: &str, make: impl Fn() -> (L, Books) + 'static) -> Row
where
    L: Layer<Moody, Service = S> + 'static,
    S: Service<Request<Body>, Response = Response<R>, Error: Into<BoxError>, Future: Send + 'static>
        + Clone
        + Send
        + 'static,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let path = type_name::<L>().split('<').next().unwrap();
    let layer = path.rsplit("::").next().unwrap();
    let make = move || {
        let (layer, books) = make();
        let over: Over = Box::new(move |moody| BoxCloneService::new(Erased(layer.layer(moody))));
        Stack { over, books }
    };
    Row { label: format!("{layer}, {way}"), layer, uri: URI, unready: Unready::Fails, make: Box::new(make) }
}
