use http::{Extensions, HeaderMap, Method, Request, Uri};

/// The request without its body, as every hook of this crate receives it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The URI.
    pub uri: &'a Uri,
    /// The header fields. They may contain a credential.
    pub headers: &'a HeaderMap,
    /// The extensions from the caller and from the layers above.
    pub extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    /// Borrows the head of `request`.
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}
