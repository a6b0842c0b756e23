use http::HeaderValue;

use crate::{id, random::Random};

/// The id of a call that has one already, such as that of the request that its caller is serving: put into the extensions
/// of the call's request.
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

/// Makes the ids of calls. A closure that returns a [`HeaderValue`] is one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not make request ids",
    label = "not a `MakeRequestId`",
    note = "a closure `|| -> http::HeaderValue` does"
)]
pub trait MakeRequestId: Send + Sync {
    /// Called once for each call that brings no id.
    fn make_request_id(&self) -> HeaderValue;
}

impl<F: Fn() -> HeaderValue + Send + Sync> MakeRequestId for F {
    fn make_request_id(&self) -> HeaderValue {
        self()
    }
}

pub(super) struct UuidV7(pub(super) Random);

impl MakeRequestId for UuidV7 {
    fn make_request_id(&self) -> HeaderValue {
        id::uuid_v7(&self.0)
    }
}
