//! The request that a client keeps for a retry.

use bytes::Bytes;
use http::{Request, Response, header::CONTENT_LENGTH, response};

use super::settings::Settings;
use crate::{
    body::{Body, BrokenBody, BrokenResponse},
    call::{CallContext, RecordedHead, Report},
    error::{BoxError, Error},
    request_id::RequestId,
};

/// The request of a call. The client keeps it until the body of the response was read.
pub(super) struct KeptRequest {
    head: RecordedHead,
    /// `None` if the body is not in memory. The request is then not retried.
    body: Option<Bytes>,
}

impl KeptRequest {
    pub(super) fn of(request: &Request<Body>) -> Self {
        Self { head: RecordedHead::of(request), body: request.body().in_memory() }
    }

    /// Runs the stack again. The retry layer either sends the request, as the next attempt of the same call, or returns
    /// the error of the body.
    pub(super) async fn retry(
        &self,
        settings: &Settings,
        response: response::Parts,
        error: BoxError,
    ) -> Result<Response<Body>, Error> {
        let error = Error::of_body(error);
        let report = Report::from_extensions(&response.extensions);
        // If an outer layer sent several requests, or one without its extensions, the stack would take the next one for
        // a new call.
        let Some(report) = report.filter(|report| !report.is_after_processing()) else { return Err(error) };
        let (call, id) = (CallContext::reported_by(report), report.request_id());
        let mut request = self.head.request(Some(&call), self.body.clone().unwrap_or_default().into());
        if self.body.is_none() {
            // The request is not sent. With the length of its body, the stack would reject it.
            request.headers_mut().remove(CONTENT_LENGTH);
        }
        let broken = BrokenResponse { head: response, is_replayable: self.body.is_some() };
        let extensions = request.extensions_mut();
        extensions.insert(BrokenBody::new(broken, error));
        id.map(|id| extensions.insert(RequestId(id)));
        (settings.stack)(request).await
    }
}
