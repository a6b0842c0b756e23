//! Layer 4: one id for a call, sent with each of its attempts, and the log by which a call is followed.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_outbound::request_id::RequestIdLayer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let service = ServiceBuilder::new().layer(RequestIdLayer::new()).service_fn(
//!     |request: http::Request<()>| async move {
//!         assert_eq!(request.headers()["x-request-id"].len(), 36);
//!         Ok::<_, std::convert::Infallible>(http::Response::new(()))
//!     },
//! );
//!
//! service.oneshot(http::Request::get("https://api.example.com/v1").body(())?).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The log
//!
//! Events of the `tracing` crate. Fields without a value are left out. Neither a query, nor a header's value
//! other than the two ids, nor a body is ever logged.
//!
//! | target | level | when | fields |
//! |---|---|---|---|
//! | `tower_outbound::call` | info, warn when the call failed or its answer is a 4xx or 5xx | a call ended | `service` `request_id` `server_request_id` `http.request.method` `server.address` `server.port` `url.path` `http.response.status_code` `error.type` `attempts` `ended` `waited_ms` `elapsed_ms` |
//! | `tower_outbound::attempt` | debug | an attempt ended | `request_id` `server_request_id` `attempt` `http.response.status_code` `error.type` `waited_ms` `elapsed_ms` `asked_ms` |
//! | `tower_outbound::retry` | debug | a back-off begins | `request_id` `delay_ms` `reason` |
//! | `tower_outbound::retry` | debug | a failure is not tried again | `request_id` `ended` |
//! | `tower_outbound::limit` | debug | a request waited for its permit | `waited_ms` |
//! | `tower_outbound::limit` | info | the server paused the limiter | `pause_ms` |
//!
//! `error.type` is `timeout`, `rate_limited`, `too_costly`, `auth`, `invalid_request` or `service` for a call; `timeout`,
//! `rate_limited`, `not_sent` or `failed` for an attempt. `ended` is a word of [`Ended`](crate::call::Ended),
//! `reason` one of [`DelayReason`](crate::call::DelayReason).
//! `attempts` is 0 when no retry layer is in the stack. Milliseconds are fractional.
//!
//! # Order
//!
//! Outermost: one id for the call, however many attempts it takes, and a log line that covers all of it.
//!
//! # Surprises
//!
//! - A header of that name that the caller has set is kept, and is the call's id.
//! - The answer is not changed: the server's own id is kept in the [`Report`](crate::Report), and ours is never
//!   written into an answer that has none.
//! - A call that its caller drops ends without a line, and an attempt that the total deadline cuts off without
//!   one of its own; `attempts` counts it.

mod future;
mod layer;
mod service;

pub use self::future::ResponseFuture;
pub use self::layer::RequestIdLayer;
pub use self::service::RequestId;
