use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Response, StatusCode};
use pin_project_lite::pin_project;

use super::credential::SentKey;
use crate::{
    call::KeyReplaced,
    error::{BoxError, Error, MaybeRejected},
    policy::grpc::Code,
};

pin_project! {
    /// The future of [`Auth`](super::Auth).
    pub struct ResponseFuture<F, P> {
        #[pin]
        pub(super) state: State<F, P>,
    }
}

pin_project! {
    #[project = StateProj]
    pub(super) enum State<F, P> {
        // Signs the request, and then calls the inner service.
        Signing { #[pin] signing: P },
        Calling { #[pin] future: MaybeRejected<F>, key: Option<SentKey> },
    }
}

impl<F, P, R, E> Future for ResponseFuture<F, P>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: Into<BoxError>,
    P: Future<Output = Result<F, Error>>,
{
    type Output = Result<Response<R>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let future = match state.as_mut().project() {
                StateProj::Signing { signing } => match ready!(signing.poll(cx)) {
                    Ok(future) => MaybeRejected::Calling { future },
                    Err(error) => MaybeRejected::rejected(error),
                },
                StateProj::Calling { future, key } => {
                    let mut result = ready!(future.poll(cx));
                    if let (Ok(response), Some((keys, key))) = (&mut result, key) {
                        if rejects_key(response) {
                            if keys.reject(key) {
                                response.extensions_mut().insert(KeyReplaced);
                            }
                        } else if !matches!(response.status().as_u16(), 403 | 429 | 500..) {
                            keys.accept(key);
                        }
                    }
                    return Poll::Ready(result);
                }
            };
            state.set(State::Calling { future, key: None });
        }
    }
}

/// Returns whether the response is a 401, or has gRPC's `UNAUTHENTICATED` in its headers.
pub(crate) fn rejects_key<R>(response: &Response<R>) -> bool {
    response.status() == StatusCode::UNAUTHORIZED
        || Code::in_head(response.headers()) == Some(Code::UNAUTHENTICATED)
}

/// Omits the inner future, which may contain a credential that is not marked sensitive.
impl<F, P> fmt::Debug for ResponseFuture<F, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
