use std::{
    any::Any,
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Extensions, response};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
#[cfg(feature = "hyper")]
use hyper::body::Incoming;

#[cfg(feature = "hyper")]
use super::response::ConnectionBody;
use super::response::IdleBody;
#[cfg(feature = "client")]
use crate::call::Report;
use crate::error::{BoxError, Error};

/// The body of a request or a response of the client. It can hold a body of any type.
///
/// Does not allocate for an empty body, for bytes in memory or for hyper's own body. Any other body is boxed.
///
/// ```
/// use tower_outbound::Body;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_outbound::BoxError> {
/// let body = Body::from(r#"{"to":"ann"}"#);
/// assert_eq!(body.bytes_up_to(1024).await?, r#"{"to":"ann"}"#);
/// # Ok(())
/// # }
/// ```
///
/// # Default
///
/// The default is [`Body::empty`].
///
/// # Notes
///
/// Polling a body returns `None` after its end or after an error.
pub struct Body {
    kind: Kind,
    /// The report of the call whose stack has returned this body, if there are layers above the stack.
    #[cfg(feature = "client")]
    report: Option<Report>,
}

enum Kind {
    /// The remaining bytes in memory. Empty at the end of the body.
    Full(Bytes),
    #[cfg(feature = "hyper")]
    Incoming(IdleBody<ConnectionBody>),
    /// The second field creates the body again, if [`Body::from_fn`] has created it.
    Boxed(UnsyncBoxBody<Bytes, BoxError>, Option<MakeBody>),
}

pub(super) type MakeBody = Box<dyn Fn() -> Body + Send + Sync>;

impl Body {
    /// Creates an empty body.
    pub fn empty() -> Self {
        Self::of(Kind::Full(Bytes::new()))
    }

    fn of(kind: Kind) -> Self {
        Self {
            kind,
            #[cfg(feature = "client")]
            report: None,
        }
    }

    /// Creates a body that returns the data and trailers of `body`.
    ///
    /// Boxes the body, unless it is empty, in memory, a `Body`, or hyper's response body. The last two may also be in
    /// an `IdleBody`.
    pub fn new<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        if body.is_end_stream() {
            return Self::empty();
        }
        let mut slot = Some(body);
        if let Some(body) = take(&mut slot) {
            return body;
        }
        if let Some(body) = take::<IdleBody<Self>>(&mut slot) {
            return Self::idle(body);
        }
        #[cfg(feature = "hyper")]
        if let Some(body) = take::<Incoming>(&mut slot) {
            return Self::of_connection(body.into());
        }
        #[cfg(feature = "hyper")]
        if let Some(body) = take::<IdleBody<Incoming>>(&mut slot) {
            return Self::of(Kind::Incoming(body.map(ConnectionBody::from)));
        }
        slot.map(|body| Self::boxed(body.map_err(Into::into).boxed_unsync(), None)).unwrap_or_default()
    }

    /// Creates a boxed body, and stores the function that creates it again.
    fn boxed(body: UnsyncBoxBody<Bytes, BoxError>, make: Option<MakeBody>) -> Self {
        Self::of(Kind::Boxed(body, make))
    }

    /// Takes the function that creates this body again.
    pub(super) fn take_make(&mut self) -> Option<MakeBody> {
        match &mut self.kind {
            Kind::Boxed(_, make) => make.take(),
            _ => None,
        }
    }

    /// Applies the idle timeout without a box, if there is one, to a body of a connection.
    fn idle(body: IdleBody<Self>) -> Self {
        match body.into_parts() {
            (Some(body), None, _) => body,
            (Some(body @ Self { kind: Kind::Full(_), .. }), ..) => body,
            #[cfg(feature = "hyper")]
            (Some(Self { kind: Kind::Incoming(body), .. }), limit, call) if !body.has_limit() => {
                Self::of(Kind::Incoming(body.with_limit(limit).with_call(call)))
            }
            (Some(body), limit, call) => {
                let body = IdleBody::new(body, limit).with_call(call);
                Self::boxed(body.map_err(Into::into).boxed_unsync(), None)
            }
            (None, ..) => Self::empty(),
        }
    }

    #[cfg(feature = "hyper")]
    pub(crate) fn of_connection(body: ConnectionBody) -> Self {
        Self::of(Kind::Incoming(IdleBody::new(body, None)))
    }

    /// Returns the bytes of a body that is in memory.
    #[cfg(feature = "client")]
    pub(crate) fn in_memory(&self) -> Option<Bytes> {
        match &self.kind {
            Kind::Full(data) => Some(data.clone()),
            _ => None,
        }
    }

    #[cfg(feature = "client")]
    pub(crate) fn with_report(self, report: Option<Report>) -> Self {
        Self { report, ..self }
    }

    /// Returns the report of the call whose stack has returned this body, unless a layer has wrapped the body.
    #[cfg(feature = "client")]
    pub(crate) fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// Returns the rest of the body if it has arrived and has at most `limit` bytes.
    #[cfg(feature = "client")]
    pub(crate) fn arrived(&mut self, limit: usize) -> Option<Bytes> {
        if let Kind::Incoming(body) = &mut self.kind {
            self.kind = Kind::Full(body.get_mut()?.read_ahead()?);
        }
        match &mut self.kind {
            Kind::Full(data) if data.len() <= limit => Some(mem::take(data)),
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Full(ref data) if data.is_empty() => "empty",
            Kind::Full(_) => "full",
            #[cfg(feature = "hyper")]
            Kind::Incoming(_) => "incoming",
            Kind::Boxed(..) => "boxed",
        }
    }
}

/// Moves the body out of `slot` if its type is `T`.
pub(super) fn take<T: 'static>(slot: &mut dyn Any) -> Option<T> {
    slot.downcast_mut::<Option<T>>()?.take()
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let polled = match &mut this.kind {
            Kind::Full(data) if data.is_empty() => return Poll::Ready(None),
            Kind::Full(data) => return Poll::Ready(Some(Ok(Frame::data(mem::take(data))))),
            #[cfg(feature = "hyper")]
            Kind::Incoming(body) => Pin::new(body).poll_frame(cx),
            Kind::Boxed(body, ..) => Pin::new(body).poll_frame(cx),
        };
        // Drops the inner body, because some bodies must not be polled after their end.
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            *this = Self::empty();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Full(data) => data.is_empty(),
            #[cfg(feature = "hyper")]
            Kind::Incoming(body) => body.is_end_stream(),
            Kind::Boxed(body, ..) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Full(data) => SizeHint::with_exact(data.len() as u64),
            #[cfg(feature = "hyper")]
            Kind::Incoming(body) => body.size_hint(),
            Kind::Boxed(body, ..) => body.size_hint(),
        }
    }
}

/// Shows the kind and the length of the body, but never its content.
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("kind", &self.name()).field("size_hint", &self.size_hint()).finish()
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

/// Creates a body from bytes in memory, such as a `Vec<u8>`, a `String` or a `&'static str`, without copying them.
impl<T: Into<Bytes>> From<T> for Body {
    fn from(data: T) -> Self {
        Self::of(Kind::Full(data.into()))
    }
}

impl Body {
    /// Creates a request body that can be created again for each attempt, such as a file that is streamed.
    ///
    /// Calls `make` immediately, and again before a retry. The retry layer resends such a body whatever its size, and
    /// does not record it. All bodies that `make` returns must have the same content.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body::Frame;
    /// use http_body_util::StreamBody;
    /// use tower_outbound::{Body, BoxError};
    ///
    /// let lines = Body::from_fn(|| {
    ///     let lines = (0..1_000).map(|line| Ok::<_, BoxError>(Frame::data(Bytes::from(format!("{line}\n")))));
    ///     Body::new(StreamBody::new(futures_util::stream::iter(lines)))
    /// });
    /// let request = http::Request::put("https://api.example.com/lines").body(lines)?;
    /// # Ok::<(), http::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `make` returns no error. If a file cannot be opened, return a body whose first frame is the error. An error of
    /// the body ends the call, as with any other body.
    ///
    /// # Notes
    ///
    /// - The size hint of each attempt is that of its own body. A body with an exact size has a `content-length`. Over
    ///   HTTP/1.1, any other body is sent in chunks, unless the request sets `content-length`.
    /// - The request must be safe to retry: a PUT is safe, but a POST only if it is declared idempotent.
    /// - A layer that replaces the body also removes `make`. The new body is recorded like any other.
    /// - A client does not resend the request if the body of the [response](crate::client::Response#retries) breaks.
    pub fn from_fn<B: Into<Self>>(make: impl Fn() -> B + Send + Sync + 'static) -> Self {
        let make = move || make().into();
        Self::boxed(make().boxed_unsync(), Some(Box::new(make)))
    }
}

/// Marks a request that the client passes to the stack again, because the body of the response broke. The retry layer
/// removes the marker from the extensions of the request, and decides as after any failed attempt.
#[derive(Clone)]
pub(crate) struct BrokenBody(Arc<(BrokenResponse, Error)>);

/// A response whose body broke.
pub(crate) struct BrokenResponse {
    pub(crate) head: response::Parts,
    /// Whether the request still has its body.
    pub(crate) is_replayable: bool,
}

impl BrokenBody {
    /// Creates a marker. `error` is from [`Error::of_body`].
    #[cfg(feature = "client")]
    pub(crate) fn new(response: BrokenResponse, error: Error) -> Self {
        Self(Arc::new((response, error)))
    }

    /// Removes the marker from the extensions of a request, which contain its call. Returns the value of the marker.
    pub(crate) fn take_from(extensions: &mut Extensions) -> Option<(BrokenResponse, Error)> {
        // Most requests have no other extension, so the lookup is skipped for them.
        let Self(marked) = if extensions.len() > 1 { extensions.remove()? } else { return None };
        Arc::into_inner(marked)
    }
}

#[cfg(test)]
mod tests;
