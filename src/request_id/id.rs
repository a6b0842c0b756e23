use http::HeaderValue;

/// An existing id for a call, such as the id of the incoming request that the caller is serving. Insert it into the
/// extensions of the call's request.
///
/// ```
/// use http::{HeaderValue, Request};
/// use tower_outbound::request_id::RequestId;
///
/// let mut request = Request::new(());
/// request.extensions_mut().insert(RequestId(HeaderValue::from_static("7f0c")));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(pub HeaderValue);
