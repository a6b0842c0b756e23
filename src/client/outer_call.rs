//! The calls of a client with layers above its stack.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use http::{Request, Response};
use tower_service::Service;

use crate::{
    body::Body,
    call::{CallContext, Report},
    error::Error,
    stack::BaseUrl,
};

/// Marks the requests that the outer layers send for one call of a client, such as the hops of a redirect. The value is
/// `true` if the server may have processed an earlier one of these requests.
#[derive(Debug, Clone, Default)]
pub(super) struct OuterCall(Arc<AtomicBool>);

/// Sends a request that has passed the outer layers.
pub(super) async fn send<S>(
    base_url: BaseUrl,
    mut stack: S,
    mut request: Request<Body>,
) -> Result<Response<Body>, Error>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Error>,
{
    // A layer may send a request without the marker after another request.
    let marker = request.extensions_mut().remove::<OuterCall>();
    let earlier = marker.as_ref().is_none_or(|OuterCall(processed)| processed.swap(true, Ordering::AcqRel));
    if earlier {
        CallContext::of(request.extensions_mut()).set_after_processing();
    }
    // The layers may have changed the URI.
    let mut result = match base_url.resolve(std::mem::take(request.uri_mut())) {
        Ok(uri) => {
            *request.uri_mut() = uri;
            stack.call(request).await
        }
        Err(error) => Err(error),
    };
    let processed = match &mut result {
        Ok(response) => Report::from_response(response).is_none_or(Report::may_have_been_processed),
        Err(error) => {
            if earlier {
                error.set_after_processing();
            }
            error.may_have_been_processed()
        }
    };
    if let Some(OuterCall(marker)) = marker {
        marker.store(processed, Ordering::Release);
    }
    result
}
