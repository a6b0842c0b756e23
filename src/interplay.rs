//! Where other people's layers belong among these, and what happens to a request there. A page of the manual, without
//! items.
//!
//! ```
//! use tower::{ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer};
//! use tower_http::{follow_redirect::FollowRedirectLayer, trace::TraceLayer};
//! use tower_outbound::{ApiKey, preset};
//! # use http_body_util::Full;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let client = tower::service_fn(|_| async {
//! #     Ok::<_, std::convert::Infallible>(http::Response::new(Full::<bytes::Bytes>::default()))
//! # });
//! let rates = preset::currency_rates("https://rates.example.com")?.with_api_key(ApiKey::new("s3cret")?);
//! let service = ServiceBuilder::new()
//!     .layer(TraceLayer::new_for_http())
//!     .layer(FollowRedirectLayer::new())
//!     // tower-http's Decompression stands here, too.
//!     .layer(rates.layer()?)
//!     .layer(ConcurrencyLimitLayer::new(20))
//!     .service(client);
//!
//! let request = http::Request::get("https://rates.example.com/v1").body(Full::<bytes::Bytes>::default())?;
//! assert_eq!(service.oneshot(request).await?.status(), 200);
//! # Ok(())
//! # }
//! ```
//!
//! "Above" is outside of the whole stack, "below" between it and the client, "between" among our layers. In every place
//! it works in so far as only what was polled ready is called, by the service and by its clones; what a place costs is
//! in the table. Each row has its tests in the repository's `tests/stacks/interplay`, which try the wrong places, too.
//!
//! | neighbour | above | between | below | right |
//! |---|---|---|---|---|
//! | tower `ConcurrencyLimit` | a place is held through the wait for the limiter and the back-off | under retry and above limit: through the wait | held while a request is with the client only; who waits for a place beyond its permit's time takes a new permit, so the window holds | **below** bounds what the server has at a time; above bounds the calls of this program |
//! | tower `Timeout` | drops the call with its report and its log line; nobody further in knows of it, so what can't fit is not refused at once; `Elapsed` instead of `Error::is_timeout` | under retry and above limit: as below, and its time runs in the wait, where nothing was sent: a POST is not sent again | an attempt that may have been sent: again when it is idempotent, `Error::is_timeout` does not hold, `Elapsed` is in `source()` | **ours**: [`TimeoutLayer`](crate::timeout::TimeoutLayer), `total` and `per_attempt` |
//! | tower `Buffer` | our `Error` is in its `BoxError`: downcast it | above limit: our layers outside read an `Error` from inside; under a timeout: given up in the queue, a request is not sent, and not sent again, for its body is still there | **the window does not hold**: what has its permit leaves when the buffer lets it go. A service that once fails to get ready stays broken, with the cause in `source()` | **above**, where a service that is not `Clone` doesn't force it lower; ours need none |
//! | tower `Balance` | over stacks made of one [`StackLayer`](crate::stack::StackLayer) or limiter: the endpoints share the quota. Ours are ready at once, so it sees load only by a measure such as `PendingRequests` | | is not `Clone`, so in a `Buffer`: with the `Buffer`'s window, once no endpoint is ready | **above** |
//! | tower `LoadShed` | over limit, retry or a preset it sheds nothing: they wait in the call, also for a service that is not ready. Over a `ConcurrencyLimit` above them it sheds, and over the other layers alone, which pass readiness on | under retry, over a `ConcurrencyLimit` above limit: as below, and pays no permit | what is shed was not sent: an attempt of its own in the report, tried again after the back-off whatever its method, reaching a service that gets ready meanwhile; its permit is spent. A service that stays unready makes `Error::is_service` with `Overloaded` in `source()` | **above, with a `ConcurrencyLimit`**; against a long line [`with_max_wait`](crate::limit::RateLimitLayer::with_max_wait) and [`with_max_queue`](crate::limit::RateLimitLayer::with_max_queue), which say how long it would be |
//! | tower-http `FollowRedirect` | each hop is a call with an id, attempts, permits and a deadline of its own; the key only where it belongs | under request id and total deadline, above retry: the hops share id, deadline and report | **a POST that was processed may be sent again** when its second hop fails; hops pay no permit; the key is for tower-http to strip, see [`auth`](crate::auth) | **above retry** |
//! | tower-http `Decompression` | what fails is drained as it came | | the 64 KiB that are read of a failed answer count decompressed: a larger one loses its connection. Request and replay are the same | **above** |
//! | tower-http `Trace` | its span holds the `call` span, and shows the URI without the key | | inside the `attempt` span, once for each attempt; it writes the URI that is sent, **with a key in the query** | **above**, or below with a `make_span_with` that leaves out the query |
//! | tower-resilience `CircuitBreaker` | counts calls: one outcome, after all attempts; our `Error` by `into_inner`. **Our refusals open it**, unless its classifier asks `Error::is_rate_limited` | under retry and above limit: as below, and what it refuses pays no permit, what the limiter refuses counts | counts attempts, opens in the midst of a call, and the attempts that are left meet it open. Both its errors prove nothing to retry: a POST is not sent again, though nothing was | **above**; below with the errors told apart, as here |
//!
//! # A circuit breaker below
//!
//! Its error hides the client's error from `source()`, so the retry layer takes every failure to mean "maybe
//! processed". Unwrap the client's error, and return a [`DeliveryError`](crate::error::DeliveryError) for an open
//! circuit:
//!
//! ```ignore
//! fn mark(error: CircuitBreakerError<BoxError>) -> BoxError {
//!     match error {
//!         open @ CircuitBreakerError::OpenCircuit => DeliveryError::not_sent(open).into(),
//!         CircuitBreakerError::Inner(error) => error,
//!     }
//! }
//!
//! let service = ServiceBuilder::new().layer(RetryLayer::new()).map_err(mark).layer(breaker).service(client);
//! ```
//!
//! The same applies to any layer that can return an error without calling its service. By default a breaker counts
//! errors only: a 503 is no failure unless its classifier makes it one.
//!
//! # Surprises
//!
//! - A request whose permit went stale while it waited for a place keeps the place while it waits for the next permit: see
//!   [`limit`](crate::limit#notes).
//! - The wait for the limiter is in the call and not in `poll_ready`. Whatever measures readiness above finds ours ready.
//! - `Overloaded` proves that nothing was sent where it is the service's own error, not where another error wraps it.
//! - tower's layers of time and tower-http's know nothing of the [`Deadline`](crate::call::Deadline) in a request.
