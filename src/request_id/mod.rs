//! Gives each call one id, sends it with every attempt, and logs each call.
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
//! These tables list all spans and events of this crate, which uses `tracing`. A test compares them with the code. A
//! field without a value is omitted. Queries, user info and bodies are never logged. Of the header values, only the two
//! ids and the name of a server's quota are logged.
//!
//! | target | level | span | covers | fields |
//! |---|---|---|---|---|
//! | `tower_outbound::call` | debug | `call` | a call, with its waits and backoff, up to the head of its response | `service` `request_id` `http.request.method` `url.full` `http.response.status_code` `attempts` `stop_reason` `error.type` `otel.status_code` |
//! | `tower_outbound::call` | info | `call` | the same, with [`with_info_spans`](RequestIdLayer::with_info_spans) | `service` `request_id` `http.request.method` `url.full` `http.response.status_code` `attempts` `stop_reason` `error.type` `otel.status_code` |
//! | `tower_outbound::attempt_span` | trace | `attempt` | an attempt, from the limiter's grant to the head of its response | `otel.kind` `otel.name` `otel.status_code` `http.request.method` `http.request.method_original` `http.request.resend_count` `server.address` `server.port` `url.full` `http.response.status_code` `network.protocol.version` `rpc.response.status_code` `error.type` |
//! | `tower_outbound::attempt_span` | info | `attempt` | the same, with [`with_info_spans`](RequestIdLayer::with_info_spans) | `otel.kind` `otel.name` `otel.status_code` `http.request.method` `http.request.method_original` `http.request.resend_count` `server.address` `server.port` `url.full` `http.response.status_code` `network.protocol.version` `rpc.response.status_code` `error.type` |
//!
//! This layer creates the span `call`, and [`attempt_span`](crate::attempt_span) creates the span `attempt`. Each span
//! is current while the inner services of its layer are polled. The features of this crate do not change the level of a
//! span or the fields of an event.
//!
//! | target | level | event | when | fields |
//! |---|---|---|---|---|
//! | `tower_outbound::call` | info | call completed | a call ended and did not fail | `service` `request_id` `http.request.method` `server.address` `server.port` `url.path` `member` `http.response.status_code` `rpc.response.status_code` `error.type` `attempts` `attempt_log` `stop_reason` `queued_ms` `backoff_ms` `elapsed_ms` `network.protocol.version` `delivery` `key_ms` `resolve_ms` `connect_ms` `tls_ms` `connection_wait_ms` `response_ms` `requested_delay_ms` `server_request_id` |
//! | `tower_outbound::call` | warn | call failed | a call failed, see below | `service` `request_id` `http.request.method` `server.address` `server.port` `url.path` `member` `http.response.status_code` `rpc.response.status_code` `error.type` `attempts` `attempt_log` `stop_reason` `queued_ms` `backoff_ms` `elapsed_ms` `network.protocol.version` `delivery` `key_ms` `resolve_ms` `connect_ms` `tls_ms` `connection_wait_ms` `response_ms` `requested_delay_ms` `server_request_id` |
//! | `tower_outbound::call` | info | call failed | the limiter [refused](#refused-calls) a call | `service` `request_id` `http.request.method` `server.address` `server.port` `url.path` `member` `http.response.status_code` `rpc.response.status_code` `error.type` `attempts` `attempt_log` `stop_reason` `queued_ms` `backoff_ms` `elapsed_ms` `network.protocol.version` `delivery` `key_ms` `resolve_ms` `connect_ms` `tls_ms` `connection_wait_ms` `response_ms` `requested_delay_ms` `server_request_id` |
//! | `tower_outbound::call` | warn | each attempt has another request id: move the request id layer outside the retry layer | once for each layer that has given one call two ids | `service` |
//! | `tower_outbound::call` | warn | a wait for a permit had no deadline: move the total timeout layer outside the rate limit layer | once for each layer, if a call has waited before the layer set its deadline | `service` |
//! | `tower_outbound::attempt_span` | debug | attempt ended | an attempt of the retry layer ended, or the body of its response broke; not the [only attempt](#the-only-attempt-of-a-call) of a call | `service` `request_id` `attempt` `http.response.status_code` `network.protocol.version` `error.type` `delivery` `queued_ms` `key_ms` `resolve_ms` `connect_ms` `tls_ms` `connection_wait_ms` `response_ms` `elapsed_ms` `server_request_id` `requested_delay_ms` |
//! | `tower_outbound::retry` | debug | retrying | another attempt starts after `delay_ms` | `service` `request_id` `delay_ms` `reason` |
//! | `tower_outbound::retry` | debug | no further attempt | a failure is not retried | `service` `request_id` `stop_reason` |
//! | `tower_outbound::retry` | warn | a retry repeats a key that may have expired: move the auth layer inside the retry layer | once for each layer, if a request with a replaceable key in a header is retried | `service` |
//! | `tower_outbound::limit` | debug | waited for the limiter | a request waited for its permit | `service` `queued_ms` |
//! | `tower_outbound::limit` | warn | limiter refused a request | a refusal, at most [once in 10 s](#refused-calls) for each layer | `service` `reason` `unit` `error` `suppressed` |
//! | `tower_outbound::limit` | debug | limiter refused a request | any other refusal | `service` `reason` `unit` `error` |
//! | `tower_outbound::limit` | info | limiter paused by the server | a response requested a pause, or rejected a request without a delay | `service` `member` `pause_ms` `quota` |
//! | `tower_outbound::limit` | warn | limiter paused by the server beyond the longest pause | once for each such pause | `service` `member` `pause_ms` `probe_after_ms` |
//! | `tower_outbound::limit` | warn | retries exceed the quota: move the rate limit layer inside the retry layer | once for each layer, if one permit was taken for several attempts | `service` `attempts` |
//! | `tower_outbound::limit` | warn | a key may expire during the wait for a permit: move the auth layer inside the rate limit layer | once for each layer, if a request with a replaceable key in a header has waited | `service` |
//! | `tower_outbound::limit` | debug | limiter learned another rate | an adaptive limiter changed its rate, in requests per second | `service` `rate` `source` |
//! | `tower_outbound::limit` | warn | limiter's store stopped replying | a query to the store of a shared limiter failed | `error` `state` `retry_in_ms` |
//! | `tower_outbound::limit` | info | limiter's store replies again | a query succeeded again, after `lost_ms` | `lost_ms` |
//! | `tower_outbound::auth` | debug | key refresh begins | a key provider is called, also again after its runtime shut down or was not driven | |
//! | `tower_outbound::auth` | info | key refreshed | the provider returned a key | |
//! | `tower_outbound::auth` | info | key changed | a key file has another key | |
//! | `tower_outbound::auth` | warn | key refresh failed | a provider returned no key, or a file became unreadable | `error` `kept` `retry_in_ms` |
//! | `tower_outbound::auth` | info | key rejected by the server | a 401, or gRPC's `UNAUTHENTICATED`, to a key that is replaced; in a pool, the first one to any key | |
//!
//! A call is logged as failed in these cases:
//!
//! - No response arrived.
//! - The response of the call is a 5xx, or gRPC's `UNKNOWN`, `DEADLINE_EXCEEDED`, `UNIMPLEMENTED`, `INTERNAL`,
//!   `UNAVAILABLE` or `DATA_LOSS`.
//! - The retry layer made no further attempt after a temporary failure, for example after a third 429.
//! - The retry layer did not retry a response, because it is [permanent](crate::limit::ServerSignal::with_permanent).
//! - The retry layer did not retry a 429, because the response, a rule or a classifier forbids it.
//!
//! Every call that is not logged as failed is logged as completed, even if it ends with a 404.
//! [`with_log_level`](RequestIdLayer::with_log_level) changes the level of the event for completed and refused calls.
//!
//! # Refused calls
//!
//! A full queue may refuse thousands of calls per second. The event `call failed` of a call that the limiter refused
//! at its first attempt therefore has the level of completed calls. The rate limit layer emits one WARN event with the
//! reason, and DEBUG events for the refusals of the next 10 s. The next WARN event has their number in `suppressed`. The
//! metrics count every refusal.
//!
//! # The only attempt of a call
//!
//! If the subscriber enables the events of calls and of attempts, a call with one attempt emits one event instead of
//! two. Its event `call completed` or `call failed` then has the fields of `attempt ended`, from
//! `network.protocol.version` to `requested_delay_ms` in the table. At INFO, the event of a slow call has only the
//! [times of the attempt](#where-the-time-went), and that of a faster call none of these fields. With more than one
//! attempt, they are omitted. Without this layer, or if its events are disabled or below INFO, each attempt has its own
//! event. If a layer outside the retry layer sends another request for the call, such as a redirect, the event of the
//! first attempt is emitted when the next attempt starts.
//!
//! # Where the time went
//!
//! The event of a call and the `Display` text of its [`Report`](crate::Report) show where the time went:
//!
//! | field | time |
//! |---|---|
//! | `queued_ms` | in the limiter's queue |
//! | `backoff_ms` | between the end of an attempt and the start of the next one, including a delay that the server requested |
//! | `attempt_log` | of each attempt, outside the queue: `503@27ms, timeout@3s, 200@2s` |
//!
//! - Their sum is `elapsed_ms`, except for rounding and the times in the next item. `attempt_log` has whole
//!   milliseconds below a second, otherwise two decimal places. The event of a call with one attempt has no
//!   `attempt_log`: the attempt took the rest of `elapsed_ms`.
//! - They contain neither the time in layers outside the retry layer nor the time before the first poll of the call.
//! - The time of an attempt includes the wait for a key, for a connection and for a service that is not ready. If a
//!   task is polled late, its wait, backoff or attempt takes longer.
//! - The name of an attempt is the status, gRPC's code, `timeout`, or the value that `error.type` has in its event.
//!   `(not_sent)` follows if the request was not sent. An attempt that the total deadline ends is named `deadline`. In
//!   the report of a call that still runs or was dropped, the last attempt is named `unfinished` and has no time.
//! - `attempt_log` has at most 240 characters. The earlier attempts of a longer list become a count and the sum of
//!   their times: `12 earlier@9.2s, 503@27ms`.
//!
//! If a call with one attempt took at least 100 ms outside the limiter's queue, its event also shows the times of the
//! attempt. The event of a faster call has them only at DEBUG.
//!
//! | field | time |
//! |---|---|
//! | `key_ms` | waiting for a key or a signature, which may read the body first; omitted if the deadline ended the wait |
//! | `connection_wait_ms` | waiting for a connection or an HTTP/2 stream, including the time to open a connection |
//! | `resolve_ms`, `connect_ms`, `tls_ms` | opening that connection, unless it was already open; without the phase that failed |
//! | `response_ms` | between sending the request and the end of the attempt, including the upload of the request's body |
//!
//! Only the crate's own [`transport`](crate::transport) reports the times other than `key_ms`.
//!
//! # Fields
//!
//! | field | value |
//! |---|---|
//! | `service`, `request_id` | in events of the call, its attempts and retries only if the span `call` is disabled |
//! | `http.request.method`, `url.path` | in events only if the span `call` is disabled, or has an unknown method or no `url.full` |
//! | `member` | only with a [`Pool`](crate::stack::Pool): the position in `Pool::new`, from 0, of the member that got the last attempt. `url.path` is then always present and has the path that this member received |
//! | `server.address`, `server.port` | in lower case; in events only without a `service`, and like `url.path` |
//! | `error.type` | the name of an [`ErrorKind`](crate::ErrorKind); in spans also the status of a 4xx or 5xx, or gRPC's code |
//! | `otel.status_code` | `error` with an `error.type` |
//! | `attempts`, `attempt_log`, `backoff_ms` | only from the second attempt |
//! | `stop_reason` | the name of a [`StopReason`](crate::call::StopReason) other than `success`; `not_retryable` not in `call completed` |
//! | `reason` | the name of a [`DelayReason`](crate::call::DelayReason); of a refusal, that of a [`Reason`](crate::error::Reason) |
//! | `delivery` | `not_sent` or `maybe_processed`, of an attempt without a response; `rejected`, if the response states that the request was [not processed](crate::call::Delivery#rejected-requests) |
//! | `queued_ms`, and all milliseconds | with one decimal place; `queued_ms`, `backoff_ms`, `key_ms` and `connection_wait_ms` only from 0.1 |
//! | `rpc.response.status_code` | the name of a `grpc-status` in the head of the response |
//! | `network.protocol.version` | the version of HTTP, such as `1.1` or `2`, of an attempt with a response |
//! | `http.request.method` | `_OTHER` in spans for an unknown method, with its name in `http.request.method_original` |
//! | `http.request.resend_count` | only from the second time that the request is passed to the client |
//! | `url.full` | without user info and query; only if the request's URI is absolute |
//! | `error` | the failure, without its cause, which may contain a secret |
//! | `suppressed` | the number of refusals since the last WARN event, which had only DEBUG events; only from 1 |
//! | `quota` | the name of the server's quota that is empty, from its header; redacted if it may contain the key |
//! | `kept` | whether the earlier key stays in use |
//! | `state` | a shared limiter's store: `fallback` or `refusing` |
//!
//! The attempt's span has the attributes of OpenTelemetry's HTTP client span: `otel.kind` is `client`, and `otel.name`
//! is the method. A path is never part of the name.
//!
//! # Other crates' events
//!
//! The tables on this page cover only the targets that start with `tower_outbound`. A server may repeat the key in the
//! debug data of a GOAWAY or in the `te` field of a response. At `DEBUG` and `TRACE`, the crate `h2` logs frames with
//! this data, and hyper and tonic log errors that contain it. The filter
//! `h2=info,hyper=info,hyper_util=info,tonic=info` drops those events.
//!
//! # Order
//!
//! Place this layer outermost, so that each call has one id and one event, regardless of its number of attempts.
//!
//! # Notes
//!
//! - If the caller has set the id's header, or has inserted a [`RequestId`] into the request's extensions, that value
//!   is the call's id. If both are present, the header is used.
//! - The header of the id is marked as sensitive, so that HTTP/2 does not add each id to its compression table. `Debug`
//!   of a request's headers therefore does not show the id.
//! - The layer does not change the response. It logs the server's own id and records it in the
//!   [`Report`](crate::Report), unless the id [may contain the key](crate::Report::server_request_id).
//! - The retry layer logs the end of each attempt, outside the span of the attempt.
//! - If several subscriber layers have their own filters, the span `call` may be enabled for only one of them. The
//!   other layers then receive events without `service` and `request_id`. A layer at INFO beside a layer at DEBUG also
//!   receives the fields of the only attempt. A layer that selects the events of attempts, but not those of calls, does
//!   not receive the only attempt of a call.
//! - A call that starts while no subscriber is active has no event, even if a subscriber is installed before it ends.
//! - A call that its caller drops has no event. Its spans have no status, because nothing failed.
//! - The event of a call is emitted when the response headers arrive. Its times do not include the response body, so a
//!   slow body does not make the call slow. A later failure, in a streamed body or in gRPC trailers, is not logged.
//! - A client passes a call to the stack again if the [body of a response
//!   breaks](crate::retry#broken-response-bodies). The call then has a second span `call`, but no second event
//!   `call completed`. The event `call failed` follows if the call fails. Its `elapsed_ms` counts from the start of the
//!   call.
//! - An attempt timeout ends its attempt at the total deadline, so that the attempt has an event. Without an attempt
//!   timeout, or while the attempt waits for its permit, key or signature, the total timeout cancels the attempt, which
//!   then has no event. `attempts` counts it, and the `error.type` of its span is `deadline`.

mod service;

pub use self::service::{RequestIdLayer, ResponseFuture, SetRequestId};

use http::HeaderValue;

/// An existing id for a call, such as the id of the incoming request that the caller is serving. Insert it into the
/// extensions of the call's request.
///
/// ```
/// use http::{HeaderValue, Request};
/// use tower_outbound::request_id::RequestId;
///
/// let mut request = Request::new(());
/// request.extensions_mut().insert(RequestId(HeaderValue::from_static("7f0c")));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(pub HeaderValue);

/// Reads and writes the headers with the server's id in configuration files.
#[cfg(feature = "serde")]
mod server_headers {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::{call::Naming, config::text::List};

    pub(super) fn serialize<S: Serializer>(naming: &Naming, to: S) -> Result<S::Ok, S::Error> {
        List(naming.server_headers.clone()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Naming>, D::Error> {
        let List(server_headers) = List::deserialize(from)?;
        Ok(Arc::new(Naming { service: None, server_headers }))
    }
}
