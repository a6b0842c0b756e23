//! Layer 2: a request waits for its permit before it is sent, first come, first served.
//!
//! ```
//! use tower_outbound::{Quota, limit::{RateLimitLayer, TokenBucket}};
//! # use tower::{Service, ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let bucket = TokenBucket::new(Quota::per_minute(100)?);
//! let layer = RateLimitLayer::new(bucket);
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
//! Inside retry, so that every attempt pays; outside auth, so that a request reads the current key after its
//! wait and not before. The wait happens inside the call's future, never in `poll_ready`: deadlines and logs
//! outside cover it, and nothing further in is held ready meanwhile. After the permit is granted the future
//! readies the inner service, then calls it.
//! Among other people's layers: see [`interplay`](crate::interplay). No buffer below.
//!
//! # Surprises
//!
//! - One limiter is one bucket: all its clones, and every `layer()` made of them, share it.
//! - A permit expires if its task is polled late, or if the inner service becomes ready late: later than a quarter of the
//!   quota's margin each. It also expires during a pause and while the server reports no remaining permits. The request
//!   waits for another permit then, in its old place in the queue, or with the inner service held ready. See
//!   [`Quota`](crate::Quota#margin).
//! - Whoever takes permits in a loop and does nothing else never yields to other tasks: a grant that is there is given
//!   at once. A call that sends something yields in its client.
//! - "100 per minute" means at most 100 in *any* 60 seconds. The burst counts in the window, and the margin widens it, so a
//!   [`TokenBucket`] refills fewer than 100 per minute. [`Quota::sustained`](crate::Quota::sustained) returns the rate.
//! - What can't fit in the deadline is refused at once with the time that it would have taken.
//! - A response of 429, 503 or 529 with `Retry-After` pauses the limiter for everybody who shares it; what any answer says
//!   is left (`RateLimit`, `X-RateLimit-*`) bounds what all of them send. `resume` lifts both by hand.
//! - Who waits for the end of a pause, or comes right after it, leaves in order and by the quota. Without a quota one
//!   goes at its end, or as many as the server had left before, and with every 100 ms twice as many, for 2 s: no
//!   stampede, and a server that is still too busy stops the rest.
//! - A request that failed or was given up counts for 10 s against what the server says is left: it may be on its way.
//! - The head of a long line sleeps on for up to 4 ms, and a sixteenth of the time that the line takes, to be served
//!   together with others: a timer's tick costs more than a permit.
//! - Waiting needs a tokio runtime with its timer on. A call that never waits needs none.
//! - A waiting future keeps its place for as long as it lives: drop the one that you don't poll any more, or
//!   those behind it wait for a newcomer to move the line.

mod abandoned;
mod any;
mod any_select;
mod core;
mod erased;
mod feedback;
mod future;
mod gcra;
mod keyed;
mod layer;
mod limiter;
mod line;
mod local;
mod meter;
#[cfg(all(test, outbound_loom))]
mod model;
mod queue;
mod ramp;
mod ring;
mod says;
mod seat;
mod select;
mod service;
mod snapshot;
mod sync;
mod ticker;
mod ticket;

pub use self::any::{AnyAcquire, AnyLimiter};
pub use self::any_select::AnySelect;
pub use self::feedback::Feedback;
pub use self::future::ResponseFuture;
pub use self::keyed::{Keyed, KeyedBucket, KeyedWindow};
pub use self::layer::RateLimitLayer;
pub use self::limiter::{Ask, Cost, Limiter};
pub use self::local::{LocalLimiter, SlidingWindow, TokenBucket};
pub use self::select::{Head, Select};
pub use self::service::RateLimit;
pub use self::snapshot::{Snapshot, Store};
pub use self::ticket::Acquire;
pub use crate::error::{Reason, Refusal};

/// For a limiter whose permits come from outside: the same line, before a meter of its own.
#[cfg(feature = "redis")]
pub(crate) use self::{
    gcra::{Bucket, Gcra},
    line::Demand,
    meter::Meter,
    queue::Queue,
    ring::Rings,
};

/// Saturates after 584 years.
pub(crate) fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
