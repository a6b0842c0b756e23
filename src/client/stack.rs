use std::pin::Pin;

use http::{Request, Response};
use tower_service::Service;

use crate::{body::Body, error::Error};

pub(super) type Called = Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

/// The whole stack as one type. A call costs one box, of its future.
pub(super) trait Stack: Send + Sync {
    fn begin(&self, request: Request<Body>) -> Called;
}

/// For a stack that is always ready, because the retry layer waits for its inner service in its future.
impl<S> Stack for S
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Error> + Clone + Send + Sync,
    S::Future: Send + 'static,
{
    fn begin(&self, request: Request<Body>) -> Called {
        Box::pin(self.clone().call(request))
    }
}
