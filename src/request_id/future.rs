use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;

use crate::{
    call::{Call, Report},
    error::{BoxError, Error},
    log::{self, Subject},
};

pin_project! {
    /// The future of [`RequestId`](super::RequestId).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        future: F,
        call: Call,
        subject: Subject,
    }
}

impl<F> ResponseFuture<F> {
    pub(super) fn new(future: F, call: Call, subject: Subject) -> Self {
        Self { future, call, subject }
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
        let result = ready!(this.future.poll(cx));
        let report = this.call.report();
        Poll::Ready(match result {
            Ok(mut response) => {
                this.call.answered(response.headers());
                log::call(this.subject, &report, Ok(response.status()));
                // A retry layer further in has put it there already.
                if response.extensions().get::<Report>().is_none() {
                    response.extensions_mut().insert(report);
                }
                Ok(response)
            }
            Err(error) => {
                let error = Error::from_service(error);
                log::call(this.subject, &report, Err(&error));
                Err(error.with_report(report))
            }
        })
    }
}
