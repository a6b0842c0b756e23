use http::{Extensions, HeaderMap, Method, Request, Uri};

/// The parts of a request without its body. Closures and traits of this crate receive them as an argument.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The URI.
    pub uri: &'a Uri,
    /// The header fields. They may contain a credential.
    pub headers: &'a HeaderMap,
    /// The extensions that the caller and outer layers have set.
    pub extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    /// Borrows the head of a request.
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}
