use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;
use tracing::Span;

use crate::{
    call::{Call, Report},
    error::{BoxError, Error},
    observe::{self, Answered, Subject, Within},
};

pin_project! {
    /// The future of [`RequestId`](super::RequestId).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        future: Within<F>,
        call: Call,
        // None when nobody heard of it as it began.
        subject: Option<Subject>,
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn new(call: Call, subject: Option<Subject>, span: Span, make: impl FnOnce() -> F) -> Self {
        match span.is_disabled() {
            true => Self { call, subject, future: Within::disabled(span, make) },
            false => Self { call, subject, future: Within::new(span, make) },
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
        let mut this = self.project();
        let result = ready!(this.future.as_mut().poll(cx)).map_err(Error::from_service);
        if let Ok(response) = &result {
            this.call.answered(response.headers());
        }
        let (span, report) = (this.future.span(), this.call.report());
        let outcome = result.as_ref().map(Answered::of);
        if let Some(subject) = this.subject {
            span.in_scope(|| observe::call(subject, &report, outcome));
        }
        observe::end_call(span, &report, outcome);
        Poll::Ready(match result {
            Ok(mut response) => {
                // A retry layer further in has put it there already.
                if response.extensions().get::<Report>().is_none() {
                    response.extensions_mut().insert(report);
                }
                Ok(response)
            }
            Err(error) => Err(error.with_report(report)),
        })
    }
}
