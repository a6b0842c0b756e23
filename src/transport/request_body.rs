use http_body::Body as HttpBody;

use crate::error::BoxError;

/// The body of a request that a [`Transport`](super::Transport) can send. Every body with these bounds implements the trait.
pub trait RequestBody: HttpBody<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static {}

impl<B> RequestBody for B where B: HttpBody<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static {}
