use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;
use tracing::Span;

use crate::{
    call::{CallContext, Report},
    error::{BoxError, Error, MaybeRejected},
    telemetry::{self, ResponseSummary, Subject},
};

pin_project! {
    /// The future of [`SetRequestId`](super::SetRequestId).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        pub(super) future: MaybeRejected<F>,
        // The span is current while the future is polled and dropped, as in `tracing::Instrumented`.
        pub(super) span: Span,
        pub(super) call: CallContext,
        // The parts of the request for the log event. `None` if neither a subscriber nor a metrics recorder was active
        // when the call started.
        pub(super) subject: Option<Box<Subject>>,
    }

    impl<F> PinnedDrop for ResponseFuture<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.future.drop_in(this.span);
        }
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.span.enter();
        let mut result = ready!(this.future.poll(cx));
        if let Ok(response) = &mut result {
            let report = response.extensions().get::<Report>();
            let (any, own) =
                (report.is_some(), report.is_some_and(|report| this.call.is_reported_by(report)));
            // If the report belongs to this call, an inner retry layer has already inserted it and recorded the
            // server's id. The report of another call, which an inner client made, is not replaced.
            if !own {
                this.call.keep_server_id(response.headers());
            }
            if !any {
                response.extensions_mut().insert(this.call.report());
            }
        }
        let outcome = result.as_ref().map(ResponseSummary::of);
        if let Some(subject) = this.subject {
            telemetry::call(subject, this.call, outcome);
        }
        drop(entered);
        telemetry::end_call(this.span, this.call, outcome);
        if let Err(error) = &mut result {
            error.set_report(this.call.report());
        }
        Poll::Ready(result)
    }
}
