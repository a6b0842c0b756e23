//! Records metrics through the [`metrics`](https://docs.rs/metrics) facade, for any recorder that the program installs,
//! such as a Prometheus exporter, OpenTelemetry or statsd.
//!
//! ```
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//! use tower_outbound::adapter::metrics;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let prometheus = PrometheusBuilder::new()
//!     .with_recommended_naming(true)
//!     .set_buckets_for_metric(Matcher::Suffix("duration".into()), &metrics::BUCKETS)?
//!     .install_recorder()?;
//! metrics::enable();
//! // ... calls ...
//! println!("{}", prometheus.render());
//! # Ok(())
//! # }
//! ```
//!
//! # The metrics
//!
//! This table lists all metrics of this crate. A test compares it with the code. Durations are in seconds. A label
//! without a value is omitted.
//!
//! | metric | kind | value | labels |
//! |---|---|---|---|
//! | `http.client.request.duration` | histogram | an attempt, from the limiter's grant to its response headers | `service` `http.request.method` `server.address` `server.port` `http.response.status_code` `error.type` |
//! | `tower_outbound.call.duration` | histogram | a call, with its waits and backoff, up to its response headers | `service` `error.type` |
//! | `tower_outbound.limit.wait.duration` | histogram | the wait of a request for its permit | `service` |
//! | `tower_outbound.limit.queue` | gauge | requests in the queue | `service` |
//! | `tower_outbound.limit.grants` | counter | requests that were granted their permits, each counted once | `service` |
//! | `tower_outbound.limit.refusals` | counter | requests that the limiter refused | `service` `reason` `unit` |
//! | `tower_outbound.limit.pause.duration` | histogram | the pause that a response requested | `service` |
//! | `tower_outbound.limit.learned_rate` | gauge | the requests per second that an adaptive limiter has learned | `service` |
//! | `tower_outbound.limit.store.duration` | histogram | a query that a shared limiter sends to its store | `outcome` |
//! | `tower_outbound.limit.store.lost` | gauge | shared limiters whose store does not reply | |
//! | `tower_outbound.retry.retries` | counter | retries, each counted before its delay | `service` `reason` |
//! | `tower_outbound.retry.give_ups` | counter | calls with a failure that was not retried | `service` `reason` |
//! | `tower_outbound.auth.refreshes` | counter | completed refreshes of a key, and changes of a key file; an unreadable file counts once until it is readable again | `outcome` |
//! | `tower_outbound.auth.rejections` | counter | rejections of a key by the server, if the key can be replaced | |
//!
//! OpenTelemetry specifies `http.client.request.duration` and its attributes. The [`attempt_span`](crate::attempt_span)
//! layer records this metric.
//!
//! - `error.type` is the name of an [`ErrorKind`](crate::ErrorKind), a 4xx or 5xx status, or a gRPC code. The
//!   [spans](crate::request_id) have the same values.
//! - `service` is the name from the [`request_id`](crate::request_id) layer or from the preset.
//! - `reason` is the name of a [`Reason`](crate::error::Reason), [`DelayReason`](crate::call::DelayReason) or
//!   [`StopReason`](crate::call::StopReason).
//! - `unit` is that of the quota that delays the queue, by default `requests`.
//! - `outcome` of a key refresh is `refreshed` or `failed`.
//! - `outcome` of a query to a store is `replied`, `late` or `failed`. A reply is `late` if its permits had expired
//!   when it arrived.
//!
//! The Prometheus exporter replaces dots by underscores. With `with_recommended_naming` it adds `_total` to counters
//! and `_seconds` to durations.
//!
//! # Cardinality
//!
//! All labels have a small, fixed set of values, with these exceptions:
//!
//! - `service` is chosen by the application.
//! - `server.address`, in lower case, and `server.port` have one value for each host and port that is called. If a
//!   layer above follows redirects, servers choose these values with `Location`. In that case restrict the hosts of
//!   redirects, or drop the labels in the recorder.
//! - `http.response.status_code` has up to 900 values (100 to 999), because a server may send any status.
//!
//! # Notes
//!
//! - Nothing is recorded before [`enable`] is called, because another crate of the program may have enabled the feature
//!   `metrics`. A disabled metric costs one load of a flag.
//! - The duration of a call ends at its first response headers. A retry after a [broken response
//!   body](crate::retry#broken-response-bodies) is recorded as a retry and an attempt, but not as another call.
//! - The duration of a call or attempt is not recorded if its caller drops it. If the total deadline cancels an
//!   attempt, its duration is recorded with the `error.type` `deadline`.
//! - The duration of a wait is recorded if the wait ends in a refusal, but not if the caller drops the request. The
//!   queue gauge decreases in both cases.
//! - A request waits again if its permit expires before the inner service is ready. The second wait is recorded, but
//!   the second grant is not counted.

use ::metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

use crate::telemetry::{event, metric};

/// The upper bounds of histogram buckets for durations, in seconds, as OpenTelemetry's semantic conventions recommend
/// for `http.client.request.duration`.
///
/// The `metrics` facade does not define buckets, so set them in the recorder. Without buckets, the Prometheus exporter
/// creates summaries. Waits and pauses can be longer than the last bound, 10 s.
pub const BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// Registers descriptions of the metrics with the installed recorder, and starts recording in the entire program.
///
/// If another recorder is installed later, call this function again to register the descriptions with that recorder.
pub fn enable() {
    use Unit::{Count, Seconds};
    describe_histogram!(metric::REQUEST_DURATION, Seconds, "Duration of HTTP client requests.");
    describe_histogram!(metric::CALL_DURATION, Seconds, "Duration of calls, including waits and backoff.");
    describe_histogram!(event::WAIT_DURATION, Seconds, "Duration of the waits for a permit.");
    describe_histogram!(event::PAUSE_DURATION, Seconds, "Duration of the pauses that responses requested.");
    describe_gauge!(event::LEARNED_RATE, Count, "Requests per second that an adaptive limiter has learned.");
    describe_gauge!(event::QUEUE, Count, "Requests in the limiter's queue.");
    describe_counter!(event::GRANTS, Count, "Requests whose permits were granted.");
    describe_counter!(event::REFUSALS, Count, "Requests that the limiter refused, by reason.");
    describe_counter!(event::RETRIES, Count, "Retries, by reason.");
    describe_counter!(event::GIVE_UPS, Count, "Calls with a failure that was not retried, by reason.");
    describe_counter!(event::KEY_REFRESHES, Count, "Completed key refreshes, by outcome.");
    describe_counter!(
        event::KEY_REJECTIONS,
        Count,
        "Rejections by the server of a key that can be replaced."
    );
    #[cfg(feature = "redis")]
    super::redis::describe_metrics();
    metric::switch_on();
}
