//! Limits the rate of requests: each request waits in a queue for its permits before it is sent.
//!
//! ```
//! use tower_outbound::{Quota, limit::{LocalLimiter, RateLimitLayer}};
//! # use tower::{Service, ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let layer = RateLimitLayer::new(LocalLimiter::paced_window(Quota::per_minute(100)?));
//! let service = ServiceBuilder::new().layer(layer).service_fn(
//!     |_: http::Request<()>| async { Ok::<_, std::convert::Infallible>(http::Response::new(())) },
//! );
//!
//! service.oneshot(http::Request::new(())).await?;
//! # Ok(())
//! # }
//! ```
//!
#![doc = include_str!("../guide/pictures/window.svg")]
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
//!   sustained rate is 100 per 61 s: see [`Quota::sustained`](crate::Quota::sustained). A [token
//!   bucket](crate::limit::LocalLimiter::token_bucket) subtracts the burst, here 10, from its refill, which is 90 per
//!   61 s.
//! - A call that cannot meet its deadline fails immediately. The error carries the wait that it would have needed.
//! - A long queue is served in groups, because a timer tick costs more processor time than a permit. A permit is
//!   granted up to 4 ms late for this, but at most a sixteenth of the last waiter's wait.
//! - An available permit is granted immediately. A task that only acquires permits in a loop therefore never yields to
//!   the runtime while permits are available. A call that sends a request yields in its HTTP client.
//! - A call that waits needs a tokio runtime with its timer enabled. A call that never waits needs no runtime.
//! - While requests are queued, the limiter runs one small task on each runtime that they wait on. It sleeps until the
//!   next permit is due, grants it, and wakes its waiter. The task ends within a second after the queue is empty.
//! - A queued future that nobody polls wastes a permit: see [Absent waiters](#absent-waiters). Drop a future that you
//!   no longer poll.
//!
//! # Priorities
//!
//! A request has one of three priorities: see [`Priority`]. The limiter serves a queued request of a higher priority
//! first. Each lower priority with queued requests still gets a share of the permits. The default is 10 %: see
//! [`with_lower_priority_share`](LocalLimiter::with_lower_priority_share).
//!
//! - At a [token bucket](crate::limit::LocalLimiter::token_bucket), a request of high priority for one permit waits for
//!   at most two refill intervals if no other such request is queued, and none of normal priority whose permit has
//!   [expired](#expiry).
//! - Requests of the same priority are served first in, first out.
//! - A new request of a higher priority delays the waiters of lower priorities. A waiter that would then miss its
//!   deadline or exceed its longest wait fails within 10 ms.
//! - Each limiter has its own order, and so does each key of a [`Keyed`]. Processes that share a quota through Redis do
//!   not share their queues: each process has its own order.
//!
//! # Absent waiters
//!
//! A waiter is absent if its caller keeps the future without polling it, or if its runtime is blocked. A permit that it
//! does not collect expires, and is wasted. The next permit goes to the waiter behind it. The absent waiter returns to
//! its position when it is polled, and from then on gets permits only while it is polled. At most one permit is
//! therefore wasted for each absent waiter.
//!
//! # Expiry
//!
//! A permit expires if
//!
//! - the waiter's task is polled more than a quarter of the quota's margin, or more than 1 s, after the grant;
//! - the inner service becomes ready more than a quarter of the quota's margin after that poll;
//! - the request gets a connection of this crate's `transport` more than a quarter of the quota's margin after that
//!   poll;
//! - the limiter pauses, or the server reports no remaining permits.
//!
//! A request whose permit expired waits for another permit. A request that is still queued keeps its position. A
//! request that has left the queue waits again, and holds the inner service ready, or the connection. Its
//! [`Priority`] is then one step higher, because it was granted a permit before the other waiters. The [`Amounts`] of
//! an expired permit are available again. See [`Quota`](crate::Quota#margin).
//!
//! # Server limits
//!
//! - A throttled response, such as a 429, with `Retry-After` pauses the limiter for every caller that shares it. The
//!   [guide](crate::guide::services#what-a-response-does) lists the statuses.
//! - A 429, 529, 509 or 420 that states neither a delay nor the reset of an empty quota pauses the limiter for 1 s. See
//!   [`with_throttle_pause`](LocalLimiter::with_throttle_pause).
//! - A requested delay of more than an hour fails calls immediately, and one request per hour leaves as a probe. See
//!   [`with_longest_pause`](LocalLimiter::with_longest_pause).
//! - The remaining permits in the `RateLimit*` and `X-RateLimit-*` headers also apply to all callers. A limiter with a
//!   quota reads them only from a throttled response, because the quota already limits the rate.
//!   [`with_server_remaining`](LocalLimiter::with_server_remaining) makes it read them from every response.
//! - An [adaptive](crate::limit::LocalLimiter::adaptive) limiter learns a rate from the headers and from throttled
//!   responses. The remaining permits themselves limit it only with `with_server_remaining`.
//! - [`resume`](LocalLimiter::resume) lifts the pause and discards the remaining permits that the server reported. It
//!   also forgets a learned rate if the server has reported a quota.
//! - After a pause, queued requests leave in the order of the queue, first a burst. Without a quota, the requests
//!   leave in a slow start. The slow start begins with one request, or with the remaining permits that the server
//!   reported. The total number of requests then doubles every 100 ms for 2 s. An
//!   [adaptive](crate::limit::LocalLimiter::adaptive) limiter first sends one request, and waits for its response.
//! - A request that failed or was dropped counts against the server's remaining permits for 10 s, because it may still
//!   reach the server.

mod any;
#[cfg(feature = "serde")]
mod config;
#[allow(
    unreachable_pub,
    missing_docs,
    reason = "public only in the test kit, outside of semantic versioning"
)]
pub(crate) mod core;
mod feedback;
mod future;
mod joint;
mod keyed;
mod layer;
mod limiter;
mod local_limiter;
mod permit;
mod rules;
mod service;
mod setters;
mod settlement;
mod shell;
mod snapshot;

pub use self::any::AnyLimiter;
#[cfg(feature = "serde")]
pub use self::config::{DialectConfig, RateLimitConfig};
pub use self::core::{Demand, PermitSource};
pub use self::feedback::ResponseInfo;
pub use self::future::ResponseFuture;
pub use self::joint::Joint;
pub use self::keyed::Keyed;
pub use self::layer::RateLimitLayer;
pub use self::limiter::{Limiter, PermitCost, PermitIssuer, PermitRequest, SelectLimiter};
pub use self::local_limiter::LocalLimiter;
pub use self::permit::{InFlight, Permit};
pub use self::service::{InFlightBody, RateLimit};
pub(crate) use self::setters::max_in_flight;
pub use self::settlement::{Metered, Settlement};
pub use self::shell::acquire::Acquire;
pub use self::snapshot::{Effect, Learned, LearnedFrom, Snapshot, UnitState};
pub use crate::policy::{
    Amounts, Priority, QuotaName, Remaining, Taken, Unit,
    dialect::{Dialect, Scope, ServerSignal},
    rate_limit::QuotaHeaders,
};
