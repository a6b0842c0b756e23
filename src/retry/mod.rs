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
#![doc = include_str!("../guide/pictures/call.svg")]
//!
//! # When a request is retried
//!
//! A [`Classify`] decides whether a retry may succeed. The default, [`DefaultClassifier`], retries after the outcomes
//! below. [`Grpc`] classifies gRPC responses.
//!
//! | outcome | backoff |
//! |---|---|
//! | a throttled response, such as a 429 or 529 | throttled |
//! | 408, 500, 502, 503, 504 | transient |
//! | 520–524, 530: a CDN could not reach its origin | transient |
//! | an attempt's timeout, a transport error | transient |
//!
//! The default classifier does not retry after any other status, an error of another layer of this crate, or an
//! untrusted certificate. If a 4xx or 5xx response contains `x-should-retry` or `stripe-should-retry`, that header
//! overrides the status.
//! [`retry_on`](RetryLayer::retry_on), [`never_on`](RetryLayer::never_on) and [`retry_if`](RetryLayer::retry_if)
//! override the classifier.
//!
//! The layer itself decides whether a retry is safe, and no classifier can override that. A retry is safe in any of
//! these cases:
//!
//! - The method is idempotent: GET, HEAD, OPTIONS, TRACE, PUT or DELETE.
//! - The request carries an [`IdempotencyKey`] that the server honours.
//! - The caller declared the request idempotent, with [`RetryOverride::with_idempotent`] or
//!   [`RetryLayer::with_idempotent`].
//! - The request was provably not processed: there was no connection, the connection closed before the request was
//!   written, or the server refused the HTTP/2 stream. A custom service reports this with a
//!   [`DeliveryError`](crate::error::DeliveryError).
//! - The server [rejected](crate::call::Delivery#rejected-requests) the request, such as with a 429. To retry only
//!   idempotent requests after that, see [`with_retry_rejected`](RetryLayer::with_retry_rejected).
//!
//! A retry also requires
//!
//! - that `max_attempts` is not reached;
//! - credit in the [`Budget`], which all calls share;
//! - enough time before the deadline;
//! - a request body that can be replayed: it is within the replay limit, and it was read completely or not at all. A
//!   body of [`Body::from_fn`](crate::Body::from_fn) is created again whatever its size, unless it returned an error.
//!
//! [`RetryLayer::decide`] returns the decision for a response or an error without a call, so that a test can check the
//! configuration of a layer.
//!
//! If no retry is possible, the layer immediately returns the last response or error. Its [`Report`](crate::Report)
//! contains the [reason](crate::call::StopReason). A retry takes its credit from the budget before the delay. The
//! credit is not returned if the caller drops the call before the retry is sent.
//!
//! # Deciding by the body
//!
//! The layer decides about a retry before the response body is read. To decide by the body, let an inner layer read the
//! body and insert a value into the extensions of the response:
//!
//! ```
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_outbound::{Body, BoxError, retry::RetryLayer, test_util::{ScriptedResponse, ScriptedService}};
//!
//! #[derive(Clone)]
//! struct Busy;
//!
//! async fn mark_busy(response: http::Response<Body>) -> Result<http::Response<Body>, BoxError> {
//!     let (mut head, body) = response.into_parts();
//!     let body = body.bytes_up_to(64 * 1024).await?;
//!     if body.starts_with(b"busy") {
//!         head.extensions.insert(Busy);
//!     }
//!     Ok(http::Response::from_parts(head, body.into()))
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let busy = ScriptedResponse::status(200).with_body("busy, try again");
//! let api = ScriptedService::new([busy, ScriptedResponse::status(200).with_body("done")]);
//! let service = ServiceBuilder::new()
//!     .layer(RetryLayer::new().retry_if(|_request, attempt| attempt.extension::<Busy>().is_some()))
//!     .and_then(mark_busy)
//!     .service(api);
//!
//! let response = service.oneshot(http::Request::new(Body::empty())).await?;
//! assert_eq!(response.into_body().bytes_up_to(1024).await?, "done");
//! # Ok(())
//! # }
//! ```
//!
//! To use the inner layer in a client, wrap a service in the layer, and pass the wrapped service to
//! [`client_with_service`](crate::stack::StackBuilder::client_with_service).
//!
//! # Broken response bodies
//!
//! A response body breaks if its connection or stream ends early, or if it stalls for longer than its idle timeout. The
//! layer does not read bodies, but a [`Client`](crate::Client) does: in `text`, `bytes` and `json` of its response, and
//! in `fetch_text` and `fetch_json`. The client passes the request to the stack again if the body breaks, below its
//! [outer layers](crate::client::Response#retries), and the layer decides as after any failed attempt:
//!
//! - The retry belongs to the same call. It sends the same request id and idempotency key, keeps the deadline, and needs
//!   credit, a backoff and a permit. In the [`Report`](crate::Report), the broken attempt has failed.
//! - The request must be idempotent, because the server has processed it.
//! - The body of the request must be in memory, and within the replay limit.
//! - The layer obeys `Retry-After` of the broken response. The default classifier does not retry if the response contains
//!   `x-should-retry: false` or `stripe-should-retry: false`.
//!
//! The method returns the error of the body if no retry follows. It returns an error with the status of the retry if that
//! status is not a 2xx. For example, a retried DELETE may end with a 404.
//!
//! The client does not retry after a status other than 2xx, a body that is too large, or invalid JSON. It never retries a
//! body that the caller streams.
//!
//! # After a 401
//!
//! The auth layer inserts [`KeyReplaced`](crate::call::KeyReplaced) into the extensions of a 401 if another key is
//! available or is being fetched. The retry layer then resends the request once with that key:
//!
//! - The resend has no backoff and goes through all inner layers. If the 401 itself requests a delay, the layer waits
//!   for this delay.
//! - The resend happens for any method, because a request that received a 401 was not applied (RFC 9110 §15.5.2).
//! - The resend counts neither as an attempt nor against the budget. The report lists it, with
//!   [`DelayReason::KeyReplaced`](crate::call::DelayReason::KeyReplaced).
//! - Each call is resent at most once, even with several retry layers. [`DefaultClassifier`] does not retry a second
//!   401.
//! - In a [`Pool`](crate::stack::Pool), a request whose key has no replacement is resent to another member in the same
//!   way.
//! - The request is not resent if it carries [`RetryOverride::without_retries`], or if its body cannot be replayed. It
//!   is also not resent in the last 100 ms before the deadline, which are reserved for draining the response.
//!
//! The auth layer also inserts `KeyReplaced` if the response headers contain the gRPC code `UNAUTHENTICATED`. gRPC does
//! not guarantee that such a call was not processed. The retry layer therefore resends the call only if it is declared
//! idempotent, and if no negative `grpc-retry-pushback-ms` forbids a retry. If the call is not resent, the next call
//! uses the new key.
//!
//! # Delay
//!
//! The delay before a retry is the backoff or the delay that the server requested, whichever is longer.
//!
//! - The backoff is [`ExponentialBackoff::transient`](crate::ExponentialBackoff::transient), or
//!   [`throttled`](crate::ExponentialBackoff::throttled) after a throttled response, such as a 429, or a custom [`Backoff`].
//! - The server requests a delay with `retry-after-ms`, `x-ms-retry-after-ms`, `Retry-After`, in any form
//!   that the [guide](crate::guide::services#delays-and-resets) lists, `grpc-retry-pushback-ms` or gRPC's `RetryInfo`. If
//!   a throttled response has none of these, a quota without remaining permits requests a delay until its reset.
//! - A requested delay is never shortened. The first valid header in the order above counts, and the longest of its
//!   values. gRPC's delay counts if it is longer. A date is compared to the response's own `Date` header, because the
//!   clocks of server and client differ.
//! - Jitter lengthens a requested delay, but never shortens it.
//! - The call immediately returns the response if the requested delay is longer than
//!   [`max_retry_after`](RetryLayer::with_max_retry_after).
//!
//! # Order
//!
//! Place the layer inside the total timeout, whose deadline it reads. Place it outside the limit and auth layers, so
//! that every attempt acquires a permit and uses the current key. [`guide::other_layers`](crate::guide::other_layers)
//! shows where the layers of other crates belong. The inner service receives a [`ReplayBody`](crate::body::ReplayBody)
//! of the caller's body.
//!
//! # Notes
//!
//! Responses and errors:
//!
//! - Every status is returned as `Ok`. The [`Report`](crate::Report) in the response or the error states why there was
//!   no further attempt.
//! - A failed gRPC call has the HTTP status 200, so it is treated as a success unless the classifier is [`Grpc`].
//! - A 101 ends the call regardless of all rules, because the caller then owns the connection.
//! - If the limiter refuses a retry, or the inner service does not become ready for the retry, the call returns the
//!   error of the previous attempt. If the previous attempt ended in a response, the call returns the error of the
//!   retry, because the body of the response was already dropped. If the limiter refused the retry, `retry_after()` of
//!   the error returns the wait that the retry would have needed.
//! - Before the backoff, the layer drains the body of a failed response, so that its connection can be reused. It stops
//!   after 64 KiB, after 100 ms, or at the end of the backoff. A resend after a 401 has no backoff, so only the first
//!   two limits apply.
//!
//! Proof that a request was not processed:
//!
//! - Errors of hyper, hyper-util and h2 provide the proof, even if another client has wrapped them. A custom service
//!   may instead return a [`DeliveryError`](crate::error::DeliveryError), `ConnectionRefused` or tower's `Overloaded`.
//! - The error or the response must concern the request that the service received. A client that follows redirects
//!   returns errors, 401s and 429s of other requests: follow redirects above this layer instead.
//! - A 429 after an earlier attempt of an inner retry layer that may have been processed is no proof.
//! - No error is proof if the request's body failed, because the error may concern the connection that the body was
//!   read from. An inner layer that replaces the body must not let the new body fail with a connection error.
//! - A GOAWAY is no proof, because hyper's error does not show whether the request was above the last processed stream.
//! - `REFUSED_STREAM` is proof by RFC 9113 §8.7. A server that sends a 103 before `REFUSED_STREAM` violates that RFC.
//!   hyper does not expose the 103 of HTTP/2, so the layer retries such a request, even a POST.
//!
//! Bodies:
//!
//! - A body whose length is known, from its size hint or `content-length`, is completely recorded once that many bytes
//!   were read. Trailers after the body are replayed only if the request has a `trailer` header.
//! - A body is not replayed if the inner service still holds it after the response, because the service may continue to
//!   read it.

mod attempts;
mod classify;
#[cfg(feature = "serde")]
mod config;
mod decision;
mod layer;
mod policy;
mod service;

pub use self::classify::{AttemptResult, Classify, DefaultClassifier, Grpc};
pub use self::layer::RetryLayer;
pub use self::policy::{Backoff, IdempotencyKey, RetryOverride};
pub use self::service::{ResponseFuture, Retry};
pub use crate::policy::{
    Budget,
    grpc::Code as GrpcCode,
    retry::{NextStep, RetryDecision, RetryRejected, RetryState},
};
