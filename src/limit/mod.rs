//! Limits the rate of requests: each request waits in a queue for its permits before it is sent.
//!
//! ```
//! use tower_outbound::{Quota, limit::{PacedWindow, RateLimitLayer}};
//! # use tower::{Service, ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let layer = RateLimitLayer::new(PacedWindow::new(Quota::per_minute(100)?));
//! let service = ServiceBuilder::new().layer(layer).service_fn(
//!     |_: http::Request<()>| async { Ok::<_, std::convert::Infallible>(http::Response::new(())) },
//! );
//!
//! service.oneshot(http::Request::new(())).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//!
//! - Place the rate-limit layer inside the retry layer, so that every attempt takes a permit.
//! - Place the rate-limit layer outside the auth layer, so that a request reads the current key after its wait.
//! - Do not place a buffer inside the rate-limit layer, because the buffer would delay requests after their grant.
//!
//! A call waits inside its future, never in `poll_ready`. Deadlines and logs of outer layers therefore cover the wait,
//! and no inner service is held ready during the wait. After the grant, the future waits until the inner service is
//! ready, then calls it.
//! [`guide::other_layers`](crate::guide::other_layers) places the layers of other crates.
//!
//! # Notes
//!
//! - All clones of a limiter, and all services made from them, share one quota.
//! - "100 per minute" means at most 100 in *any* 60 seconds. The quota's margin, here 1 s, widens the window, so the
//!   sustained rate is 100 per 61 s: see [`Quota::sustained`](crate::Quota::sustained). A [`TokenBucket`] subtracts the
//!   burst, here 10, from its refill, which is 90 per 61 s.
//! - A call that cannot meet its deadline fails immediately. The error carries the wait that it would have needed.
//! - The head of a long queue takes permits for several waiters at once, because a timer tick costs more processor time
//!   than a permit. To collect these waiters, the head waits up to 4 ms longer, but at most a sixteenth of the last
//!   waiter's wait.
//! - An available permit is granted immediately. A task that only acquires permits in a loop therefore never yields to
//!   the runtime while permits are available. A call that sends a request yields in its HTTP client.
//! - A call that waits needs a tokio runtime with its timer enabled. A call that never waits needs no runtime.
//! - A queued future that nobody polls delays the waiters behind it by up to a second: see
//!   [Absent waiters](#absent-waiters). Drop a future that you no longer poll.
//!
//! # Priorities
//!
//! A request has one of three priorities: see [`Priority`]. The limiter serves a queued request of a higher priority
//! first. Each lower priority with queued requests still gets 10 % of the permits, or the share that
//! [`with_lower_priority_share`](LocalLimiter::with_lower_priority_share) sets.
//!
//! - At a [`TokenBucket`], a single request of high priority waits for at most two refill intervals, whatever other
//!   requests are queued.
//! - Requests of the same priority are served first in, first out.
//! - A new request of a higher priority delays the waiters of lower priorities. A waiter that would then miss its
//!   deadline or exceed its longest wait fails immediately.
//! - Each limiter has its own order, and so does each key of a [`Keyed`]. Processes that share a quota through Redis do
//!   not share their queues: each process has its own order.
//!
//! # Absent waiters
//!
//! A waiter is absent if its caller keeps the future and does not poll it, or if its runtime is blocked. The queue
//! skips a head that is not polled within 100 to 350 ms after its permits became available. The number of waiters that the
//! queue skips at once doubles each time. In a queue of up to 64 requests, absent waiters delay the others by at most a
//! second.
//!
//! In a longer queue, only one of every 32 waiters of a thread detects absent waiters. A blocked runtime still delays the
//! waiters of other runtimes by about a second at most. If all waiters of a thread that would detect it were forgotten,
//! the others of that thread stay queued until another request arrives.
//!
//! - A skipped waiter takes no permits, and returns to its position when it is polled.
//! - Some waiters wake up to four times per second to detect absent waiters, and more often after a head was absent. In
//!   addition, each grant wakes at most two waiters.
//!
//! # Expiry
//!
//! A permit expires if
//!
//! - the waiter's task is polled more than a quarter of the quota's margin after the grant;
//! - the inner service becomes ready more than a quarter of the quota's margin after that poll;
//! - the limiter pauses, or the server reports no remaining permits.
//!
//! A request whose permit expired waits for another permit. A request that is still queued keeps its position. A
//! request that has left the queue waits again, and holds the inner service ready. See [`Quota`](crate::Quota#margin).
//!
//! # Server limits
//!
//! - A 429, 503 or 529 response with `Retry-After` pauses the limiter for every caller that shares it.
//! - The remaining permits in the `RateLimit*` and `X-RateLimit-*` headers also apply to all callers. A limiter with a
//!   quota reads them only from a 429, 503 or 529 response, because the quota already limits the rate.
//!   [`with_server_remaining`](LocalLimiter::with_server_remaining) makes it read them from every response.
//! - An [`Adaptive`] limiter learns a rate from the headers and from throttled responses. The remaining permits
//!   themselves limit it only with `with_server_remaining`.
//! - [`resume`](LocalLimiter::resume) lifts the pause and discards the remaining permits that the server reported. It
//!   does not change a learned rate.
//! - After a pause, queued requests leave in FIFO order at the quota's rate. Without a quota, the requests leave in a
//!   slow start. The slow start begins with one request, or with the remaining permits that the server reported. The
//!   total number of requests then doubles every 100 ms for 2 s. An [`Adaptive`] limiter first sends one request, and
//!   waits for its response.
//! - A request that failed or was dropped counts against the server's remaining permits for 10 s, because it may still
//!   reach the server.

mod algorithm;
mod any;
#[cfg(feature = "serde")]
mod config;
mod future;
mod keyed;
mod layer;
mod limiter;
mod limiters;
mod local_limiter;
mod permit;
mod permit_request;
pub(crate) mod queue;
mod server;
mod service;
mod settings;
mod snapshot;

pub use self::any::AnyLimiter;
#[cfg(feature = "serde")]
pub use self::config::RateLimitConfig;
pub use self::future::ResponseFuture;
pub use self::keyed::{Keyed, KeyedBucket, KeyedWindow};
pub use self::layer::RateLimitLayer;
pub use self::limiter::{Limiter, SelectLimiter};
pub use self::limiters::{Adaptive, PacedWindow, SlidingWindow, TokenBucket};
pub use self::local_limiter::LocalLimiter;
pub use self::permit::{Permit, PermitIssuer, ResponseInfo};
pub use self::permit_request::{PermitCost, PermitRequest};
pub use self::queue::acquire::Acquire;
pub use self::service::RateLimit;
pub use self::snapshot::{Learned, LearnedFrom, Snapshot};
pub use crate::policy::{Priority, Remaining};
