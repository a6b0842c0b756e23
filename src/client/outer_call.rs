//! The calls of a client with layers above its stack.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{Request, Response};
use tower::ServiceExt;

use super::settings::{Current, Settings};
use crate::{
    body::Body,
    call::{CallContext, Report, RequestTimeout, StopReason},
    clock,
    error::{Error, ErrorKind},
    stack::{BaseUrl, OuterService},
};

/// Marks the requests that the outer layers send for one call of a client, such as the hops of a redirect.
#[derive(Clone)]
pub(super) struct OuterCall {
    settings: Arc<Settings>,
    /// The number of these requests that run, were dropped, or may have been processed by the server.
    processed: Arc<AtomicUsize>,
}

impl OuterCall {
    pub(super) fn new(settings: &Arc<Settings>) -> Self {
        Self { settings: Arc::clone(settings), processed: Arc::default() }
    }

    /// Passes a request through the outer layers, until the timeout of the request.
    pub(super) async fn run(
        self,
        outer: OuterService,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let own = request.extensions().get::<RequestTimeout>().map(|(ends, _)| *ends);
        // A call that continues because the body of its response broke already has a deadline.
        let continued = request.extensions().get::<CallContext>().cloned();
        let of_call = continued.as_ref().and_then(CallContext::deadline);
        let began = continued.as_ref().map_or_else(clock::now, CallContext::started);
        let ends = own.into_iter().chain(of_call).min();
        let processed = Arc::clone(&self.processed);
        request.extensions_mut().insert(self);
        let call = outer.oneshot(request);
        let mut result = match ends {
            None => call.await,
            Some(ends) => tokio::time::timeout_at(ends, call).await.unwrap_or_else(|_| {
                continued.iter().for_each(|call| call.end(StopReason::Deadline));
                let limit = ends.saturating_duration_since(began);
                Err(Error::new(ErrorKind::Deadline, Some(limit), None).not_sent())
            }),
        };
        if let Err(error) = &mut result {
            if processed.load(Ordering::Acquire) > 0 {
                error.set_after_processing();
            }
        }
        result
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
        let earlier = marker.as_ref().is_none_or(|processed| processed.fetch_add(1, Ordering::AcqRel) > 0);
        if earlier {
            CallContext::of(request.extensions_mut()).set_after_processing();
        }
        // The layers may have changed the URI.
        let mut result = match base_url.resolve(std::mem::take(request.uri_mut())) {
            Ok(uri) => {
                *request.uri_mut() = uri;
                (settings.stack)(request).await
            }
            Err(error) => Err(error),
        };
        let processed = match &result {
            Ok(response) => Report::from_response(response).is_none_or(Report::may_have_been_processed),
            Err(error) => error.may_have_been_processed(),
        };
        if let Some(marker) = marker.filter(|_| !processed) {
            marker.fetch_sub(1, Ordering::AcqRel);
        }
        if let (Err(error), true) = (&mut result, earlier) {
            error.set_after_processing();
        }
        result
    }
}
