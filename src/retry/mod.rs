//! Retries requests after temporary failures, with backoff, if a retry is safe.
//!
//! ```
//! use http_body_util::Empty;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_outbound::{Report, retry::RetryLayer};
//! # use std::sync::atomic::{AtomicU32, Ordering};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # static CALLS: AtomicU32 = AtomicU32::new(0);
//! let service = ServiceBuilder::new().layer(RetryLayer::new()).service_fn(|_| async {
//!     // Fails twice, then succeeds.
//!     let status = if CALLS.fetch_add(1, Ordering::Relaxed) < 2 { 503 } else { 200 };
//!     http::Response::builder().status(status).body(Empty::<bytes::Bytes>::new())
//! });
//!
//! let response = service.oneshot(http::Request::new(Empty::<bytes::Bytes>::new())).await?;
//! assert_eq!(response.status(), 200);
//! assert_eq!(response.extensions().get::<Report>().unwrap().attempt_count(), 3);
//! # Ok(())
//! # }
//! ```
//!
//! # When a request is retried
//!
//! A [`Classify`] decides whether a retry may succeed. [`DefaultClassifier`] retries after these outcomes, and [`Grpc`]
//! reads gRPC responses:
//!
//! | outcome | backoff |
//! |---|---|
//! | 429, 529 (overloaded) | throttled |
//! | 408, 500, 502, 503, 504 | transient |
//! | 520–524, 530: a CDN could not reach its origin | transient |
//! | an attempt's timeout, a transport error | transient |
//!
//! It does not retry after any other status, an error of another layer of this crate, or an untrusted certificate. A
//! server's `x-should-retry` overrides the status. [`retry_on`](RetryLayer::retry_on), [`never_on`](RetryLayer::never_on)
//! and [`retry_if`](RetryLayer::retry_if) override the classifier.
//!
//! The layer decides whether a retry is safe, and no classifier overrides it. A retry is safe in any of these cases:
//!
//! - The method is idempotent: GET, HEAD, OPTIONS, TRACE, PUT or DELETE.
//! - The request carries an [`IdempotencyKey`] that the server honours.
//! - The caller declared it idempotent, with [`RetryOverride::with_idempotent`] or [`RetryLayer::with_idempotent`].
//! - The request was provably not processed: there was no connection, it closed before the request was written, or the
//!   server refused the HTTP/2 stream. A custom service states this with a
//!   [`DeliveryError`](crate::error::DeliveryError).
//!
//! A retry also needs
//!
//! - an attempt left;
//! - credit in the [`Budget`], which all calls share;
//! - enough time before the deadline;
//! - a recorded body: not one over the replay limit, and not one that was read only in part.
//!
//! Otherwise the layer returns the last response or error at once. Its [`Report`](crate::Report) states the
//! [reason](crate::call::StopReason). A retry spends its credit before the delay, and does not return it if its caller drops
//! the call.
//!
//! # After a 401
//!
//! The auth layer puts [`KeyReplaced`](crate::call::KeyReplaced) into the extensions of a 401 if it has another key or
//! is about to get one. The retry layer then resends the request once with that key:
//!
//! - It resends without a backoff, through all layers below. A delay that the 401 itself requests is kept.
//! - It resends any method, because a request that got a 401 was not applied (RFC 9110 §15.5.2).
//! - The resend counts neither as an attempt nor against the budget. The report lists it, with
//!   [`DelayReason::KeyReplaced`](crate::call::DelayReason::KeyReplaced).
//! - It happens once per call, even if retry layers are stacked. [`DefaultClassifier`] returns the next 401.
//! - It does not happen after [`RetryOverride::without_retries`], with an unrecorded body, or if the deadline is within
//!   100 ms, the time for draining the body.
//!
//! The auth layer also marks a gRPC `UNAUTHENTICATED` in the response headers. gRPC does not guarantee that such a call
//! was not processed. The layer resends it only if it is declared idempotent and no negative `grpc-retry-pushback-ms`
//! forbids it. Otherwise the next call uses the new key.
//!
//! # Delay
//!
//! The delay is the longer of two: the backoff, and the delay that the server requested.
//!
//! - The backoff is [`ExponentialBackoff::transient`](crate::ExponentialBackoff::transient), or
//!   [`throttled`](crate::ExponentialBackoff::throttled) after a 429 or 529, or a custom [`Backoff`].
//! - The server requests a delay with `retry-after-ms`, `x-ms-retry-after-ms` or `Retry-After`, in seconds or as an HTTP-date,
//!   or with `grpc-retry-pushback-ms`. On a 429, 503 or 529 without these, a `RateLimit` or `X-RateLimit` header without
//!   remaining permits requests it.
//! - A requested delay is never shortened. Fractions are rounded up, and the longest of several values counts. A date is
//!   read relative to the response's own `Date`, because the two clocks differ.
//! - Jitter only adds to a requested delay.
//! - The call ends at once with the response if the requested delay is longer than
//!   [`max_retry_after`](RetryLayer::with_max_retry_after).
//!
//! # Order
//!
//! The layer goes inside the total timeout, whose deadline it reads. It goes outside limit and auth, so that every
//! attempt acquires a permit and uses the current key. For the layers of other crates, see
//! [`guide::other_layers`](crate::guide::other_layers). The inner service receives a
//! [`ReplayBody`](crate::body::ReplayBody) of the caller's body.
//!
//! # Notes
//!
//! Responses and errors:
//!
//! - Every status is returned as `Ok`. The [`Report`](crate::Report) in the response or the error states why there was
//!   no further attempt.
//! - A failed gRPC call is an HTTP 200, so it counts as a success without [`Grpc`].
//! - A 101 ends the call, whatever a rule decides, because the connection then belongs to the caller.
//! - If the inner service does not become ready for a retry, or the limiter refuses it, the call returns the error of the
//!   attempt before. If that attempt ended in a response, the call returns the new error, because the response's body is
//!   gone. `retry_after()` returns the refused wait.
//! - The layer reads the body of a failed response before the backoff, so that its connection can be reused. It stops
//!   after 64 KiB, 100 ms or the backoff. After a 401 there is no backoff, and only the first two apply.
//!
//! Proofs that a request was not processed:
//!
//! - They come from errors of hyper, hyper-util and h2, also inside another client's error. The service itself may
//!   return a [`DeliveryError`](crate::error::DeliveryError), `ConnectionRefused` or tower's `Overloaded`.
//! - An error must be about the request that the service received. A client that follows redirects returns errors of
//!   other requests, and 401s as well: follow redirects above this layer instead.
//! - No error proves anything if the request's body failed, because the error may be about the connection that the body
//!   came from. A layer below that replaces the body must not let it fail with a connection's error.
//! - A GOAWAY proves nothing, because hyper's error does not show whether the request was above the last stream.
//! - A 103 before `REFUSED_STREAM` contradicts RFC 9113 §8.7, which reserves that code for requests that were not
//!   processed. hyper does not expose the 103 of HTTP/2, so the layer retries the request, also a POST.
//!
//! Bodies:
//!
//! - A body of known length, by its size hint or by `content-length`, is complete once that many bytes were read.
//!   Trailers after it are replayed only if the request has a `trailer` header.
//! - A body that the inner service still holds when it responds is not replayed, because the service may still read it.

mod attempts;
mod backoff;
mod classify;
#[cfg(feature = "serde")]
mod config;
mod future;
mod grpc;
mod head;
mod idempotency;
mod layer;
mod overrides;
mod policy;
mod service;

pub use self::backoff::Backoff;
pub use self::classify::{AttemptResult, Classify, DefaultClassifier};
pub use self::future::ResponseFuture;
pub use self::grpc::Grpc;
pub use self::idempotency::IdempotencyKey;
pub use self::layer::RetryLayer;
pub use self::overrides::RetryOverride;
pub use self::service::Retry;
pub use crate::policy::{Budget, grpc::Code as GrpcCode, outcome::RetryDecision};
