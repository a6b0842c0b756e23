use http::{Method, Request};

use super::{request::RequestBuilder, response::ResponseFuture, service::Client};
use crate::body::Body;

impl Client {
    /// Creates a GET of `path`. `.await` sends the request: see [`RequestBuilder`].
    ///
    /// The path may include a query, and may also be an absolute URL below the base URL: see
    /// [URLs](crate::client#urls). To insert an untrusted string into the path, use a
    /// [`PathSegment`](super::PathSegment).
    #[inline]
    pub fn get(&self, path: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    /// Creates a HEAD of `path`.
    pub fn head(&self, path: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::HEAD, path)
    }

    /// Creates a POST to `path`.
    pub fn post(&self, path: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::POST, path)
    }

    /// Creates a PUT to `path`.
    pub fn put(&self, path: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::PUT, path)
    }

    /// Creates a PATCH of `path`.
    pub fn patch(&self, path: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::PATCH, path)
    }

    /// Creates a DELETE of `path`.
    pub fn delete(&self, path: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::DELETE, path)
    }

    /// Creates a request with any method.
    pub fn request(&self, method: Method, path: impl AsRef<str>) -> RequestBuilder {
        RequestBuilder::new(self, method, path.as_ref())
    }

    /// Sends an [`http::Request`]. Its URI must be a path that starts with a slash, or an absolute
    /// [URL](crate::client#urls) below the base URL. Its headers must not
    /// [contradict the URL or the body](crate::stack#headers).
    ///
    /// # Errors
    ///
    /// Returns an [`Error`](crate::Error) if no response arrived. Every HTTP status is returned as `Ok`.
    pub fn execute<B: Into<Body>>(&self, request: Request<B>) -> ResponseFuture {
        ResponseFuture::new(self.clone(), self.resolve(request.map(Into::into)))
    }
}
