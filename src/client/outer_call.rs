//! The calls of a client with layers above its stack.

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use http::{Extensions, Request, Response};
use tower::ServiceExt;

use super::{
    response::{KeptRequest, until_deadline},
    settings::{Current, Settings},
};
use crate::{
    body::Body,
    call::{CallContext, DeadlineSetting, Report, RequestTimeout},
    error::Error,
    stack::{BaseUrl, OuterService},
};

/// Marks the requests that the outer layers send for one call of a client, such as the hops of a redirect.
pub(super) struct OuterCall {
    settings: Arc<Settings>,
    /// Limits the time above the stack. Its deadline is the timeout of the request.
    report: Report,
    /// Limits the body of the response if the request has no timeout. Its deadline is the total timeout of the client.
    of_body: OnceLock<Report>,
    /// The number of these requests that run, were dropped, or may have been processed by the server.
    processed: AtomicUsize,
    /// The last of these requests, and its call in the stack.
    kept: Mutex<Option<(KeptRequest, CallContext)>>,
}

impl OuterCall {
    pub(super) fn new(settings: &Arc<Settings>, timeout: Option<&RequestTimeout>) -> Arc<Self> {
        let call = CallContext::of(&mut Extensions::new());
        timeout.into_iter().for_each(|(ends, setting)| call.narrow_deadline(*ends, *setting));
        let settings = Arc::clone(settings);
        Arc::new(Self {
            settings,
            report: call.report(),
            of_body: OnceLock::new(),
            processed: AtomicUsize::default(),
            kept: Mutex::default(),
        })
    }

    /// Passes a request through the outer layers, until the timeout of the request.
    pub(super) async fn run(
        self: Arc<Self>,
        outer: OuterService,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        request.extensions_mut().insert(Arc::clone(&self));
        let mut result = until_deadline(Some(&self.report), outer.oneshot(request), Error::not_sent).await;
        if let Err(error) = &mut result {
            if self.processed.load(Ordering::Acquire) > 0 {
                error.set_after_processing();
            }
        }
        result
    }

    /// Returns the request of a response, unless a layer has wrapped or replaced the body of the response.
    pub(super) fn take_kept(&self, response: &Response<Body>) -> Option<KeptRequest> {
        let (kept, call) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let reports = [Report::from_response(response), response.body().report()];
        let is_own = |report: Option<&Report>| report.is_some_and(|report| call.is_reported_by(report));
        reports.into_iter().all(is_own).then_some(kept)
    }

    /// Returns the report whose deadline limits the body of a response: the earlier of the deadline of this call and of
    /// `given`, the report of the response. A layer may have made the response, or stored it during an earlier call.
    pub(super) fn report_of_body<'a>(&'a self, given: Option<&'a Report>) -> &'a Report {
        let ends = |report: &Report| report.deadline().map(|(ends, _)| ends);
        let own = match ends(&self.report) {
            Some(_) => &self.report,
            // Starts now, because the total timeout does not limit the wait in the outer layers.
            None => self.of_body.get_or_init(|| {
                let call = CallContext::of(&mut Extensions::new());
                call.limit_time(self.settings.builder.timeout.total.0, DeadlineSetting::TotalTimeout);
                call.report()
            }),
        };
        let is_of_this_call = |given: &&Report| given.started() >= self.report.started();
        let is_earlier = |given: &&Report| ends(given).is_some_and(|it| Some(it) <= ends(own));
        given.filter(is_of_this_call).filter(is_earlier).unwrap_or(own)
    }
}

/// Sends a request that has passed the outer layers.
pub(super) fn send(
    base_url: BaseUrl,
    current: &Current,
    mut request: Request<Body>,
) -> impl Future<Output = Result<Response<Body>, Error>> + Send + use<> {
    // A layer may send a request without the marker after another request.
    let marker = request.extensions_mut().remove::<Arc<OuterCall>>();
    let settings = marker.as_ref().map_or_else(|| current.get(), |marker| Arc::clone(&marker.settings));
    async move {
        let call = CallContext::of(request.extensions_mut());
        let earlier = marker.as_ref().is_none_or(|it| it.processed.fetch_add(1, Ordering::AcqRel) > 0);
        if earlier {
            call.set_after_processing();
        }
        // The layers may have changed the URI.
        let mut result = match base_url.resolve(std::mem::take(request.uri_mut())) {
            Ok(uri) => {
                *request.uri_mut() = uri;
                let report = marker.as_ref().map(|marker| {
                    let (kept, report) = (KeptRequest::of(&request), call.report());
                    *marker.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some((kept, call));
                    report
                });
                (settings.stack)(request).await.map(|it| it.map(|body| body.with_report(report)))
            }
            Err(error) => Err(error),
        };
        let processed = match &result {
            Ok(response) => Report::from_response(response).is_none_or(Report::may_have_been_processed),
            Err(error) => error.may_have_been_processed(),
        };
        if let Some(marker) = marker.filter(|_| !processed) {
            marker.processed.fetch_sub(1, Ordering::AcqRel);
        }
        if let (Err(error), true) = (&mut result, earlier) {
            error.set_after_processing();
        }
        result
    }
}
