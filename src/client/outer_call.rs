//! The calls of a client with layers above its stack.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{Request, Response};

use super::settings::{Current, Settings};
use crate::{
    body::Body,
    call::{CallContext, Report},
    error::Error,
    stack::BaseUrl,
};

/// Marks the requests that the outer layers send for one call of a client, such as the hops of a redirect.
#[derive(Clone)]
pub(super) struct OuterCall {
    settings: Arc<Settings>,
    /// Whether the server may have processed an earlier one of these requests.
    processed: Arc<AtomicBool>,
}

impl OuterCall {
    pub(super) fn new(settings: &Arc<Settings>) -> Self {
        Self { settings: Arc::clone(settings), processed: Arc::default() }
    }
}

/// Sends a request that has passed the outer layers.
pub(super) fn send(
    base_url: BaseUrl,
    current: &Current,
    mut request: Request<Body>,
) -> impl Future<Output = Result<Response<Body>, Error>> + Send + use<> {
    // A layer may send a request without the marker after another request.
    let marker = request.extensions_mut().remove::<OuterCall>();
    let settings = marker.as_ref().map_or_else(|| current.get(), |marker| Arc::clone(&marker.settings));
    let marker = marker.map(|marker| marker.processed);
    async move {
        let earlier = marker.as_ref().is_none_or(|processed| processed.swap(true, Ordering::AcqRel));
        if earlier {
            CallContext::of(request.extensions_mut()).set_after_processing();
        }
        // The layers may have changed the URI.
        let mut result = match base_url.resolve(std::mem::take(request.uri_mut())) {
            Ok(uri) => {
                *request.uri_mut() = uri;
                (settings.stack)(request, None).await
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
        if let Some(marker) = marker {
            marker.store(processed, Ordering::Release);
        }
        result
    }
}
