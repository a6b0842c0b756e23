use std::{error::Error as StdError, fmt};

use super::BoxError;

/// The error with which a custom service reports whether its request was sent.
///
/// The [`retry`](crate::retry) layer knows the errors of hyper and hyper-util. For any other error, it assumes that the
/// server may have processed the request. A service over another transport can return this error to report the delivery
/// exactly.
///
/// | constructor | retried |
/// |---|---|
/// | [`not_sent`](Self::not_sent) | every method, also POST |
/// | [`maybe_processed`](Self::maybe_processed) | idempotent requests only |
/// | [`circuit_open`](Self::circuit_open) | never |
///
/// # Example
///
/// In this example, the pool of the service first has no free connection, so the first request is not sent. Later a
/// connection breaks after a request was written:
///
/// ```
/// use std::{
///     future::{Ready, ready},
///     io,
///     sync::{Arc, atomic::{AtomicU32, Ordering}},
///     task::{Context, Poll},
/// };
///
/// use http::{Request, Response};
/// use http_body_util::Empty;
/// use tower::{Layer, Service, ServiceExt};
/// use tower_outbound::{BoxError, error::DeliveryError, retry::RetryLayer};
///
/// type Body = Empty<bytes::Bytes>;
///
/// #[derive(Clone, Default)]
/// struct Pool {
///     calls: Arc<AtomicU32>,
/// }
///
/// impl<B> Service<Request<B>> for Pool {
///     type Response = Response<Body>;
///     type Error = BoxError;
///     type Future = Ready<Result<Response<Body>, BoxError>>;
///
///     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
///         Poll::Ready(Ok(()))
///     }
///
///     fn call(&mut self, _: Request<B>) -> Self::Future {
///         ready(match self.calls.fetch_add(1, Ordering::Relaxed) {
///             0 => Err(DeliveryError::not_sent("no free connection").into()),
///             1 => Ok(Response::new(Body::new())),
///             _ => Err(DeliveryError::maybe_processed(io::Error::other("broken")).into()),
///         })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), BoxError> {
/// let pool = Pool::default();
/// let service = RetryLayer::new().layer(pool.clone());
///
/// // Not sent: the POST is retried, and succeeds.
/// service.clone().oneshot(Request::post("/letters").body(Body::new())?).await?;
/// assert_eq!(pool.calls.load(Ordering::Relaxed), 2);
///
/// // Maybe processed: the POST is not retried.
/// assert!(service.oneshot(Request::post("/letters").body(Body::new())?).await.is_err());
/// assert_eq!(pool.calls.load(Ordering::Relaxed), 3);
/// # Ok(())
/// # }
/// ```
///
/// # Notes
///
/// - `not_sent` has an effect only if the service itself returns it, directly or boxed. Inside another error, it may
///   concern another request, so it is ignored. Inside another error, `circuit_open` only prevents a retry.
/// - `maybe_processed` also has an effect inside other errors. It takes precedence over its causes, such as a connect
///   error of a redirect that the service followed.
/// - If the request's body failed, the retry layer treats every error as `maybe_processed`.
#[derive(Debug)]
pub struct DeliveryError {
    source: BoxError,
    pub(super) proof: Proof,
}

/// What the error of a service proves about the delivery of the request and about further attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proof {
    /// Whether the server provably did not process the request.
    pub(crate) not_sent: bool,
    /// Whether every further attempt would also fail, until a certificate, a setting or the request is changed.
    pub(crate) lasting: bool,
}

pub(super) const NOT_SENT: Proof = Proof { not_sent: true, lasting: false };
pub(super) const NEVER_SENT: Proof = Proof { not_sent: true, lasting: true };
pub(super) const MAYBE: Proof = Proof { not_sent: false, lasting: false };

impl DeliveryError {
    /// Reports that the server did not process the request, so that every method is retried.
    ///
    /// Use this only if no server can have received the whole request. This includes servers that the service reached
    /// through a redirect or in its own earlier attempts.
    pub fn not_sent(source: impl Into<BoxError>) -> Self {
        Self { source: source.into(), proof: NOT_SENT }
    }

    /// Reports that the server may have processed the request, so that only idempotent requests are retried.
    pub fn maybe_processed(source: impl Into<BoxError>) -> Self {
        Self { source: source.into(), proof: MAYBE }
    }

    /// Reports that an open circuit breaker rejected the request, without sending it. The call ends immediately,
    /// because the breaker would reject a retry, too. The call's error has the kind
    /// [`CircuitOpen`](crate::ErrorKind::CircuitOpen).
    ///
    /// Use this in a layer below or above the stack: see
    /// [`guide::other_layers`](crate::guide::other_layers#circuitbreaker).
    pub fn circuit_open(source: impl Into<BoxError>) -> Self {
        Self { source: source.into(), proof: NEVER_SENT }
    }

    /// Reports that the request was not sent, if the direct cause of `error` has the type `C`. Any other error is
    /// returned unchanged.
    ///
    /// Use this function for a client that wraps its connect errors. For tonic's channel, add
    /// `.map_err(DeliveryError::not_sent_if_caused_by::<tonic::ConnectError>)` directly above the channel.
    pub fn not_sent_if_caused_by<C: StdError + 'static>(error: impl Into<BoxError>) -> BoxError {
        let error = error.into();
        match error.source().is_some_and(|source| source.is::<C>()) {
            true => Self::not_sent(error).into(),
            false => error,
        }
    }
}

impl fmt::Display for DeliveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.proof.not_sent {
            true => "the request was not sent",
            false => "the request may have been processed",
        })
    }
}

impl StdError for DeliveryError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}
