use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Response, StatusCode};
use pin_project_lite::pin_project;

use super::refresh::Watch;
use crate::{
    call::KeyReplaced,
    error::{BoxError, Error},
    policy::grpc::Code,
};

pin_project! {
    /// The future of [`Auth`](super::Auth).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    #[derive(Debug)]
    enum State<F> {
        Calling { #[pin] future: F, watch: Option<Watch> },
        Failed { error: Option<Error> },
    }
}

impl<F> ResponseFuture<F> {
    #[inline]
    pub(super) fn calling(watch: Option<Watch>, make: impl FnOnce() -> F) -> Self {
        Self { state: State::Calling { watch, future: make() } }
    }

    pub(super) fn failed(error: Error) -> Self {
        Self { state: State::Failed { error: Some(error) } }
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Calling { future, watch } => {
                // First, or a service that answers at once would never let it begin.
                if let Some(watch) = watch {
                    watch.drive(cx);
                }
                let mut result = ready!(future.poll(cx)).map_err(Error::from_service);
                if let (Ok(response), Some(watch)) = (&mut result, watch) {
                    watch.hide_ids(response.headers_mut());
                    if watch.changes() && refuses_the_key(response) && watch.reject() {
                        response.extensions_mut().insert(KeyReplaced);
                    }
                }
                Poll::Ready(result)
            }
            StateProj::Failed { error } => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        }
    }
}

/// By HTTP's word, or by gRPC's in a head that is the whole answer.
fn refuses_the_key<R>(response: &Response<R>) -> bool {
    response.status() == StatusCode::UNAUTHORIZED
        || Code::in_head(response.headers()) == Some(Code::UNAUTHENTICATED)
}
