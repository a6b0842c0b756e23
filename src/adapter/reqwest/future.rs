use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ::reqwest::{Body as Content, Client, Url};
use http::Response;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{ReqwestBody, error};
use crate::{
    clock::{self, Instant},
    error::Error,
};

type Pending = <Client as Service<::reqwest::Request>>::Future;

pin_project! {
    /// The future of [`Reqwest`](super::Reqwest).
    pub struct ReqwestFuture {
        #[pin]
        state: State,
    }
}

pin_project! {
    #[project = StateProj]
    enum State {
        // `sent_to` is there for a client that may follow redirects.
        Calling { #[pin] pending: Pending, sent_to: Option<Url>, since: Instant },
        // None once it was told, and after any other end.
        Refused { error: Option<Error> },
    }
}

impl ReqwestFuture {
    pub(super) fn calling(pending: Pending, sent_to: Option<Url>) -> Self {
        Self { state: State::Calling { pending, sent_to, since: clock::now() } }
    }

    pub(super) fn refused(error: Error) -> Self {
        Self { state: State::Refused { error: Some(error) } }
    }
}

impl Future for ReqwestFuture {
    type Output = Result<Response<ReqwestBody>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        let result = match state.as_mut().project() {
            StateProj::Calling { pending, sent_to, since } => match ready!(pending.poll(cx)) {
                Ok(response) if sent_to.as_ref().is_some_and(|url| url != response.url()) => {
                    Err(error::followed())
                }
                Ok(response) => Ok(Response::<Content>::from(response).map(ReqwestBody::new)),
                Err(error) => Err(error::of(error, since.elapsed(), sent_to.is_some())),
            },
            StateProj::Refused { error } => match error.take() {
                Some(error) => Err(error),
                None => return Poll::Pending,
            },
        };
        state.set(State::Refused { error: None });
        Poll::Ready(result)
    }
}

/// Shows nothing of reqwest's own future, which has the URL in it.
impl fmt::Debug for ReqwestFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReqwestFuture").finish_non_exhaustive()
    }
}
