use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Response, StatusCode};
use pin_project_lite::pin_project;

use super::{ApiKey, KeySource};
use crate::{
    call::KeyReplaced,
    error::{BoxError, Error, MaybeRejected},
    policy::grpc::Code,
};

pin_project! {
    /// The future of [`Auth`](super::Auth).
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        pub(super) future: MaybeRejected<F>,
        // The key that this request sends, and its source. A 401 rejects this key.
        pub(super) key: Option<(KeySource, ApiKey)>,
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
        let mut polled = this.future.poll(cx);
        if let (Poll::Ready(Ok(response)), Some((keys, key))) = (&mut polled, this.key) {
            if rejects_key(response) && keys.reject(key) {
                response.extensions_mut().insert(KeyReplaced);
            }
        }
        polled
    }
}

/// Returns whether the response is a 401, or has gRPC's `UNAUTHENTICATED` in its headers.
fn rejects_key<R>(response: &Response<R>) -> bool {
    response.status() == StatusCode::UNAUTHORIZED
        || Code::in_head(response.headers()) == Some(Code::UNAUTHENTICATED)
}
