use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use crate::error::{BoxError, Error};

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
        Calling { #[pin] future: F },
        Failed { error: Option<Error> },
    }
}

impl<F> ResponseFuture<F> {
    pub(super) fn calling(future: F) -> Self {
        Self { state: State::Calling { future } }
    }

    pub(super) fn failed(error: Error) -> Self {
        Self { state: State::Failed { error: Some(error) } }
    }
}

impl<F, T, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Calling { future } => future.poll(cx).map_err(Error::from_service),
            StateProj::Failed { error } => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        }
    }
}
