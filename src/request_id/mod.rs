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
//! Spans and events of the `tracing` crate: the contract of what this crate tells, which a test holds it to. Fields
//! without a value are left out. Neither a query, nor user info, nor a header's value other than the two ids, nor a
//! body is ever logged.
//!
//! | target | level | span | covers | fields |
//! |---|---|---|---|---|
//! | `tower_outbound::call` | info | `call` | a call, with its waits and back-offs, up to the head of its answer | `service` `request_id` `attempts` `ended` `error.type` `otel.status_code` |
//! | `tower_outbound::attempt` | info | `attempt` | an attempt, from the limiter's grant to the head of its answer | `otel.kind` `otel.name` `otel.status_code` `http.request.method` `http.request.method_original` `http.request.resend_count` `server.address` `server.port` `url.full` `http.response.status_code` `rpc.response.status_code` `error.type` |
//!
//! The first is this layer's, the second that of [`attempt`](crate::attempt). They are current whenever what lies below
//! them is polled, so that the attempts' are the call's children, and what a client tells is the attempt's.
//!
//! | target | level | event | when | fields |
//! |---|---|---|---|---|
//! | `tower_outbound::call` | info | call answered | a call ended | `service` `request_id` `server_request_id` `http.request.method` `server.address` `server.port` `url.path` `http.response.status_code` `rpc.response.status_code` `error.type` `attempts` `ended` `waited_ms` `elapsed_ms` |
//! | `tower_outbound::call` | warn | call failed | a call ended without an answer, with a 4xx or 5xx, or with a code of gRPC's but `OK` | `service` `request_id` `server_request_id` `http.request.method` `server.address` `server.port` `url.path` `http.response.status_code` `rpc.response.status_code` `error.type` `attempts` `ended` `waited_ms` `elapsed_ms` |
//! | `tower_outbound::attempt` | debug | attempt ended | an attempt of the retry layer ended | `request_id` `server_request_id` `attempt` `http.response.status_code` `error.type` `waited_ms` `elapsed_ms` `asked_ms` |
//! | `tower_outbound::retry` | debug | retrying | another attempt is decided on; it begins after `delay_ms` | `request_id` `delay_ms` `reason` |
//! | `tower_outbound::retry` | debug | no further attempt | a failure is not tried again | `request_id` `ended` |
//! | `tower_outbound::limit` | debug | waited for the limiter | a request waited for its permit | `waited_ms` |
//! | `tower_outbound::limit` | info | paused: the server asked for it | the server paused the limiter | `pause_ms` |
//! | `tower_outbound::limit` | warn | limiter's store lost | the store of a shared limiter did not answer, once until it does | `error` `state` `retry_in_ms` |
//! | `tower_outbound::limit` | info | limiter's store back | it answers again, after `lost_ms` | `lost_ms` |
//! | `tower_outbound::auth` | debug | key refresh begins | a key provider is asked | |
//! | `tower_outbound::auth` | info | key refreshed | it gave a key | |
//! | `tower_outbound::auth` | info | key changed | a key file holds another key | |
//! | `tower_outbound::auth` | warn | key refresh failed | a provider gave no key; a file could not be read again, once until it can be | `error` `kept` `retry_in_ms` |
//! | `tower_outbound::auth` | info | key refused by the server | a 401, or gRPC's `UNAUTHENTICATED`, to a key that is replaced | |
//!
//! The retry layer writes the attempts' events, as it does its own: without it there are the spans alone.
//!
//! All that a call tells is inside its span. The events of a key are told by the call that drives the refresh, before
//! its attempt or in it, and the rest outside the attempts' spans: the retry layer and the limiter write them, above
//! it.
//!
//! `error` says what failed, but not why: that a provider's error holds no secret is not known here. It is the source
//! of the call's error. `kept` tells whether there is a key in use all the same. `state` is a word of
//! [`Store`](crate::limit::Store).
//!
//! `error.type` is `timeout`, `rate_limited`, `too_costly`, `auth`, `invalid_request` or `service` for a call and in the
//! spans, where it is the status of a 4xx or 5xx, too, or gRPC's code; `timeout`, `rate_limited`, `not_sent` or `failed` in an
//! attempt's event. `otel.status_code` is `error` with it, and not set otherwise. `ended` is a word of
//! [`Ended`](crate::call::Ended), `reason` one of [`DelayReason`](crate::call::DelayReason). `attempts` is 0 when no
//! retry layer is in the stack. Milliseconds are fractional.
//!
//! The fields of the attempt's span are the attributes of OpenTelemetry's HTTP client span: `otel.kind` is `client`,
//! `otel.name` the method, never a path. A method that HTTP does not know is `_OTHER`, and `HTTP` in the name, with its
//! own in `http.request.method_original`. `url.full` has no query at all, for which of its values are secret is not
//! known here, and is left out where the request's URI is not absolute. `rpc.response.status_code` is the name of the
//! `grpc-status` in the head of an answer, such as `UNAVAILABLE`, by OpenTelemetry's name for it; most answers have none. `http.request.resend_count` is there from the
//! second time on that the request is handed down. `server.address` is in lower case, here and in the events.
//!
//! # Order
//!
//! Outermost: one id for the call, however many attempts it takes, and a log line that covers all of it.
//!
//! # Surprises
//!
//! - A header of that name that the caller has set is kept, and is the call's id; so is an [`Id`] in the request's
//!   extensions. Where there are both, the header is the one that is sent, and the call's.
//! - The answer is not changed: the server's own id is kept in the [`Report`](crate::Report), and ours is never
//!   written into an answer that has none. An id that repeats the key, which the auth layer marks sensitive, is neither
//!   kept nor logged.
//! - A call that begins while nobody listens at any level, no subscriber and no crate `log`, ends without a line, also
//!   where one was installed meanwhile.
//! - A call that its caller drops ends without a line, and its spans without a status: that is nobody's failure.
//! - A gRPC call that fails in its trailers, after the first message of its answer, is logged as answered, as every call is
//!   whose answer's body fails: the lines are written at the answer's head.
//! - An attempt that the total deadline cuts off ends without a line of its own; `attempts` counts it, and in its span it
//!   is a `timeout`.

mod future;
mod id;
mod layer;
mod service;

pub use self::future::ResponseFuture;
pub use self::id::{Id, MakeRequestId};
pub use self::layer::RequestIdLayer;
pub use self::service::RequestId;
