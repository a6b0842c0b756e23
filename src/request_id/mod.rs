//! Gives each call one id, sends it with every attempt, and logs the call.
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
//! These are all spans and events of this crate, which uses `tracing`. A test compares these tables with the code. A
//! field without a value is omitted. Queries, user info, bodies and header values other than the two ids are never
//! logged.
//!
//! | target | level | span | covers | fields |
//! |---|---|---|---|---|
//! | `tower_outbound::call` | info | `call` | a call, with its waits and backoff, up to the head of its response | `service` `request_id` `attempts` `ended` `error.type` `otel.status_code` |
//! | `tower_outbound::attempt_span` | debug | `attempt` | an attempt, from the limiter's grant to the head of its response | `otel.kind` `otel.name` `otel.status_code` `http.request.method` `http.request.method_original` `http.request.resend_count` `server.address` `server.port` `url.full` `http.response.status_code` `network.protocol.version` `rpc.response.status_code` `error.type` |
//!
//! This layer creates the first span, and [`attempt_span`](crate::attempt_span) the second. Each is current while the services below
//! it are polled. With the feature `otel` the attempt's span has the level info, so that exporters keep it.
//!
//! | target | level | event | when | fields |
//! |---|---|---|---|---|
//! | `tower_outbound::call` | info | call completed | a call ended and did not fail | `service` `request_id` `http.request.method` `server.address` `server.port` `url.path` `http.response.status_code` `rpc.response.status_code` `error.type` `attempts` `ended` `waited_ms` `elapsed_ms` `server_request_id` |
//! | `tower_outbound::call` | warn | call failed | a call failed, see below | `service` `request_id` `http.request.method` `server.address` `server.port` `url.path` `http.response.status_code` `rpc.response.status_code` `error.type` `attempts` `ended` `waited_ms` `elapsed_ms` `server_request_id` |
//! | `tower_outbound::attempt_span` | debug | attempt ended | an attempt of the retry layer ended | `service` `request_id` `attempt` `http.response.status_code` `network.protocol.version` `error.type` `delivery` `waited_ms` `elapsed_ms` `server_request_id` `requested_delay_ms` |
//! | `tower_outbound::retry` | debug | retrying | another attempt starts after `delay_ms` | `service` `request_id` `delay_ms` `reason` |
//! | `tower_outbound::retry` | debug | no further attempt | a failure is not retried | `service` `request_id` `ended` |
//! | `tower_outbound::limit` | debug | waited for the limiter | a request waited for its permit | `service` `waited_ms` |
//! | `tower_outbound::limit` | info | paused by the server | a response paused the limiter | `service` `pause_ms` |
//! | `tower_outbound::limit` | warn | limiter's store lost | the store of a shared limiter stopped responding | `error` `state` `retry_in_ms` |
//! | `tower_outbound::limit` | info | limiter's store back | the store responds again, after `lost_ms` | `lost_ms` |
//! | `tower_outbound::auth` | debug | key refresh begins | a key provider is called | |
//! | `tower_outbound::auth` | info | key refreshed | the provider returned a key | |
//! | `tower_outbound::auth` | info | key changed | a key file has another key | |
//! | `tower_outbound::auth` | warn | key refresh failed | a provider returned no key, or a file became unreadable | `error` `kept` `retry_in_ms` |
//! | `tower_outbound::auth` | info | key refused by the server | a 401, or gRPC's `UNAUTHENTICATED`, to a key that is replaced | |
//!
//! A call failed in these cases:
//!
//! - No response arrived.
//! - Its response is a 5xx, or gRPC's `UNKNOWN`, `DEADLINE_EXCEEDED`, `UNIMPLEMENTED`, `INTERNAL`, `UNAVAILABLE` or
//!   `DATA_LOSS`.
//! - The retry layer stopped retrying it, for example after a third 429.
//!
//! Any other call completed, even with a 404. [`with_log_level`](RequestIdLayer::with_log_level) changes the level of
//! its event.
//!
//! | field | value |
//! |---|---|
//! | `service`, `request_id` | in events of the call, its attempts and retries only if the span `call` is disabled |
//! | `server.address`, `server.port` | in lower case; in events only without a `service` |
//! | `error.type` | the name of an [`ErrorKind`](crate::ErrorKind); in spans also the status of a 4xx or 5xx, or gRPC's code |
//! | `otel.status_code` | `error` with an `error.type` |
//! | `attempts` | only from 2 |
//! | `ended` | the name of a [`StopReason`](crate::call::StopReason) other than `success`; `not_retryable` not in `call completed` |
//! | `reason` | the name of a [`DelayReason`](crate::call::DelayReason) |
//! | `delivery` | `not_sent` or `maybe_processed`, of an attempt without a response |
//! | `waited_ms`, and all milliseconds | with one decimal place; `waited_ms` only from 0.1 |
//! | `rpc.response.status_code` | the name of a `grpc-status` in the head of the response |
//! | `network.protocol.version` | the version of HTTP, such as `1.1` or `2`, of an attempt with a response |
//! | `http.request.method` | `_OTHER` in spans for an unknown method, with its name in `http.request.method_original` |
//! | `http.request.resend_count` | only from the second time that the request is passed to the client |
//! | `url.full` | without user info and query; only if the request's URI is absolute |
//! | `error` | the failure, without its cause, which may contain a secret |
//! | `kept` | whether the earlier key stays in use |
//! | `state` | a shared limiter's store: `fallback` or `refusing` |
//!
//! The attempt's span has the attributes of OpenTelemetry's HTTP client span: `otel.kind` is `client`, and `otel.name` the
//! method, never a path.
//!
//! # Other crates' events
//!
//! These tables cover the targets `tower_outbound` only. At `DEBUG` and `TRACE` the crate `h2` logs frames, including
//! the debug data of a server's GOAWAY and a response's `te` field. hyper and tonic log errors that show this
//! data. A server may repeat the key there. The filter `h2=info,hyper=info,hyper_util=info,tonic=info` drops those events.
//!
//! # Order
//!
//! Outermost: one id and one event for the call, whatever its number of attempts.
//!
//! # Notes
//!
//! - The call's id is the caller's own header of that name, or an [`RequestId`] in the request's extensions. The header wins
//!   if both exist.
//! - The layer does not change the response. It logs the server's own id and keeps it in the [`Report`](crate::Report), unless it
//!   [may contain the key](crate::Report::server_request_id).
//! - The retry layer logs the attempts, outside of the attempts' spans.
//! - If several subscriber layers have their own filters, the span `call` may be enabled for one of them only. The
//!   events of the others then lack `service` and `request_id`.
//! - A call that starts while no subscriber listens has no event, even if one is installed meanwhile.
//! - A call that its caller drops has no event, and its spans have no status, because nothing failed.
//! - The event is written at the head of the response, so a later failure of the body or in gRPC trailers is not
//!   logged.
//! - An attempt that the total deadline ends has no event. `attempts` counts it, and its span's `error.type` is
//!   `deadline`.

#[cfg(feature = "serde")]
mod config;
mod future;
mod id;
mod layer;
mod service;

pub use self::future::ResponseFuture;
pub use self::id::RequestId;
pub use self::layer::RequestIdLayer;
pub use self::service::SetRequestId;
