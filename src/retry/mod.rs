//! Layer 3: a request that failed in passing is sent again, after a back-off, when that can't do harm.
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
//!     // Fails twice, then answers.
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
//! # What is sent again
//!
//! Two questions, asked one after the other.
//!
//! *Would it help?* is a [`Classify`]'s to say. [`Standard`] says yes to answers of 408, 429, 500, 502, 503 and 504, to
//! timeouts of an attempt and to failures of the connection; the server's own `x-should-retry` goes before that, and
//! rules of yours before both. It says no to a refusal by another layer of ours and to a certificate that is not
//! trusted. [`Grpc`] says it of a gRPC server's answers.
//!
//! *Would it do harm?* is decided here and can't be overruled: not when the method is idempotent (GET, HEAD, OPTIONS,
//! TRACE, PUT, DELETE), when you have said so, of one request ([`PerRequest::idempotent`]) or of a kind
//! ([`RetryLayer::with_idempotent`]), when it has an [`IdempotencyKey`] that the server honours, or when it was provably not processed: no connection was made, the connection ended before the
//! request was written, or the server refused its HTTP/2 stream.
//!
//! Then there must be an attempt left, of this call and of the [`Budget`](crate::policy::Budget) of them all; the wait
//! must fit into the deadline; and the body must have been kept, which one over the replay limit or not read to its
//! end was not. Whatever it is that stands in the way, the last answer or error is handed over at once, and its
//! [`Report`](crate::Report) says which ([`Ended`](crate::call::Ended)).
//!
//! # After a 401
//!
//! An answer of 401 with [`KeyReplaced`](crate::call::KeyReplaced) in its extensions, which the auth layer puts there when
//! another key is there or on its way, is no failure of the server's and no matter for a rule: the request is sent once
//! more with the new key, without a back-off, through all that is below. It is counted neither against the attempts, not
//! even where there is only one, nor in the budget; the report and the log have it as an attempt like any other, its
//! reason [`DelayReason::KeyReplaced`](crate::call::DelayReason::KeyReplaced). A method that is not idempotent makes no
//! difference: a request that was answered with a 401 has not been applied (RFC 9110 §15.5.2).
//!
//! `UNAUTHENTICATED` in the head of a gRPC server's answer is marked so, too, but gRPC does not say that nothing was
//! done: a server may have had that answer from another one, half way. The call is sent once more when it is idempotent,
//! which a gRPC call is where you have said so, and where no `grpc-retry-pushback-ms` of less than 0 says that the server
//! wants no other attempt; it is handed over otherwise, and the next one has the new key.
//!
//! The deadline holds, a pause that the 401 itself asks for is kept, and a body that was not kept leaves the 401 as the
//! answer. So do [`PerRequest::never`], and a deadline that leaves no time after the 100 ms that its body may be read for. It
//! happens once in a call, however many retry layers are stacked: the next 401 is judged as any other answer, and with
//! [`Standard`] it is the last.
//!
//! # How long it waits
//!
//! [`ExponentialBackoff::transient`](crate::ExponentialBackoff::transient), after a 429
//! [`throttled`](crate::ExponentialBackoff::throttled), or a [`Schedule`] of another make; at least as long as the server
//! asked for in `Retry-After` or, of gRPC, in `grpc-retry-pushback-ms`, or on a 429 or 503 without one by a `RateLimit`
//! or `X-RateLimit` field with nothing left ([`policy::asked`](crate::policy::asked)), with jitter only ever added to
//! that. When the server asks for more than [`max_retry_after`](RetryLayer::with_max_retry_after) the answer is handed
//! over at once, the ask in it.
//!
//! # Order
//!
//! Outside limit and auth, so that every attempt pays and reads the current key; inside the total deadline,
//! which it reads. Among other people's layers: see [`interplay`](crate::interplay). The inner service receives a [`ReplayBody`](crate::body::ReplayBody) of the caller's body.
//!
//! # Surprises
//!
//! - A gRPC call that failed is an HTTP 200: without [`Grpc`] it is a success.
//! - The last answer is a response, whatever its status. Why there was no further attempt stands in its
//!   [`Report`](crate::Report), as it does in the error.
//! - A 401 with the mark must be an answer to the request itself, as an error must be its own: a layer or client below that
//!   follows a redirect after a POST was processed, and is refused where it leads, has the POST sent again. Follow
//!   redirects above.
//! - The proof is read off hyper's and hyper-util's errors, those of its `HttpConnector` among them, also where another
//!   client's error wraps them, and off an [`io::Error`](std::io::Error) of `ConnectionRefused` or tower's `Overloaded`
//!   that the inner service itself failed with. An error must be of the request it was called with, and not of another one that it sends after
//!   that.
//! - Where the request's body has failed, whatever the error says proves nothing: it may be of the connection that the
//!   body comes over. Of a body that a layer below puts in the place of the one it was given nothing is known here: it
//!   must not fail with an error that reads like a connection's.
//! - After an HTTP/2 GOAWAY a POST is not sent again: hyper's error does not prove that the request was above its
//!   last stream.
//! - Where a later attempt can't begin, because the inner service fails to become ready, the error is that of the
//!   attempt before it, if that had one.
//! - What the limiter refused was no attempt either: the error is that of the attempt before it, and its
//!   `retry_after()` the wait for the limiter. After an answer, whose body is gone by then, it is the refusal.
//! - A body of announced length, by its own size hint or by `content-length`, is whole when so much was read of it;
//!   trailers after it are sent again only with a `trailer` field in the head.
//! - A 101 ends the call, whatever a rule says: the connection is the caller's.
//! - A body that the inner service still holds when it answers can't be sent again: it may yet be read.
//! - A failed answer's body is read to its end (within 64 KiB, 100 ms and the back-off) and dropped before the back-off, so
//!   that its connection can be used again. For a key that was replaced there is no back-off, and the 100 ms alone bound it.

mod classify;
mod future;
mod grpc;
mod head;
mod idempotency;
mod judge;
mod layer;
mod outcome;
mod per_request;
mod reconnect;
mod refusal;
mod schedule;
mod sent;
mod service;

pub use self::classify::{Classify, On, Outcome, Standard, When};
pub use self::future::ResponseFuture;
pub use self::grpc::Grpc;
pub use self::idempotency::IdempotencyKey;
pub use self::layer::RetryLayer;
pub use self::per_request::PerRequest;
pub use self::reconnect::Reconnect;
pub use self::schedule::{Delays, Schedule};
pub use self::service::Retry;
