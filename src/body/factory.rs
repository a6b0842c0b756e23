//! Request bodies that can be created again.

use http_body_util::BodyExt;

use super::body::Body;

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
