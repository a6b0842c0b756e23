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
    error::{Error, MaybeRejected, polled_after_completion},
};

type Pending = <Client as Service<::reqwest::Request>>::Future;

pin_project! {
    /// The future of [`Reqwest`](super::Reqwest).
    pub struct ReqwestFuture {
        #[pin]
        future: MaybeRejected<Sending>,
    }
}

pin_project! {
    struct Sending {
        // `None` after completion.
        #[pin]
        pending: Option<Pending>,
        // The URL, if the client may follow redirects.
        sent_to: Option<Url>,
        since: Instant,
    }
}

impl ReqwestFuture {
    pub(super) fn calling(pending: Pending, sent_to: Option<Url>) -> Self {
        Self {
            future: MaybeRejected::calling(|| Sending {
                pending: Some(pending),
                sent_to,
                since: clock::now(),
            }),
        }
    }

    pub(super) fn rejected(error: Error) -> Self {
        Self { future: MaybeRejected::rejected(error) }
    }
}

impl Future for ReqwestFuture {
    type Output = Result<Response<ReqwestBody>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().future.poll(cx)
    }
}

impl Future for Sending {
    type Output = Result<Response<ReqwestBody>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(pending) = this.pending.as_mut().as_pin_mut() else { polled_after_completion() };
        let (result, redirects) = (ready!(pending.poll(cx)), this.sent_to.is_some());
        this.pending.set(None);
        Poll::Ready(match result {
            Ok(response) if this.sent_to.as_ref().is_some_and(|url| url != response.url()) => {
                Err(error::followed())
            }
            Ok(response) => Ok(Response::<Content>::from(response).map(ReqwestBody::new)),
            Err(error) => Err(error::of(error, this.since.elapsed(), redirects)),
        })
    }
}

/// Hides reqwest's future, because its `Debug` shows the URL.
impl fmt::Debug for ReqwestFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReqwestFuture").finish_non_exhaustive()
    }
}
