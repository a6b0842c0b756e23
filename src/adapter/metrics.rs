//! Metrics through the [`metrics`](https://docs.rs/metrics) facade, for whichever recorder the program installs: a
//! Prometheus exporter, OpenTelemetry, statsd.
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
//! A contract, which a test holds this crate to. Durations are histograms of seconds. A label without a value is left
//! out.
//!
//! | metric | kind | what | labels |
//! |---|---|---|---|
//! | `http.client.request.duration` | histogram | one attempt, from the limiter's grant to the head of its answer | `service` `http.request.method` `server.address` `server.port` `http.response.status_code` `error.type` |
//! | `tower_outbound.call.duration` | histogram | one call, with its waits and back-offs, to the head of its answer | `service` `error.type` |
//! | `tower_outbound.limit.wait.duration` | histogram | the wait for a permit, once for each wait | `service` |
//! | `tower_outbound.limit.queue` | gauge | requests that wait for a permit now | `service` |
//! | `tower_outbound.limit.grants` | counter | requests that were granted their permits, once each | `service` |
//! | `tower_outbound.limit.refusals` | counter | requests that were refused | `service` `reason` |
//! | `tower_outbound.limit.pause.duration` | histogram | the pauses that the server asked for, once for each answer that did | `service` |
//! | `tower_outbound.limit.store.duration` | histogram | the exchanges with the store of a shared limiter | `outcome` |
//! | `tower_outbound.limit.store.lost` | gauge | shared limiters whose store does not reply now | |
//! | `tower_outbound.retry.retries` | counter | further attempts that were decided on | `service` `reason` |
//! | `tower_outbound.retry.give_ups` | counter | calls whose failure was not tried again | `service` `reason` |
//! | `tower_outbound.auth.refreshes` | counter | refreshes of a key that ended; a key file's changes, and its failures once until it can be read | `outcome` |
//! | `tower_outbound.auth.refusals` | counter | keys that the server refused and that are replaced | |
//!
//! `http.client.request.duration` is OpenTelemetry's, with its attributes. The [`attempt`](crate::attempt_span) layer
//! measures it.
//!
//! - `error.type` is a word of [`ErrorKind`](crate::ErrorKind), the status of a 4xx or 5xx, or gRPC's code, as in
//!   the [spans](crate::request_id).
//! - `service` is the name from the [`request_id`](crate::request_id) layer or from the preset.
//! - `reason` is a word of [`Reason`](crate::error::Reason), [`DelayReason`](crate::call::DelayReason) or
//!   [`StopReason`](crate::call::StopReason).
//! - `outcome` of a key is `refreshed` or `failed`.
//! - `outcome` of a request to a store is `answered`, `failed`, or `late` if its permits had expired.
//!
//! Prometheus' exporter writes underscores for dots. With `with_recommended_naming` it adds `_total` to counters and
//! `_seconds` to durations.
//!
//! # How many values a label has
//!
//! Few and fixed, but for four. `service` is yours. `server.address`, in lower case, and `server.port` have as many as
//! there are hosts and ports that you call; in a stack that follows redirects above the attempt's layer, the `Location` of
//! an answer chooses them: list the hosts that may be followed to, or drop the labels in the recorder. And the server
//! chooses `http.response.status_code`, 900 values (100 to 999) at most, as OpenTelemetry has it: it is not cut to those
//! that HTTP defines.
//!
//! # Surprises
//!
//! - Nothing is measured before [`enable`]: features add up over a whole program, and whoever did not ask for metrics
//!   does not pay for them. Switched off, each costs one load of a flag.
//! - A call that its caller drops is not in the duration. An attempt that the total deadline ends is, as `deadline`.
//! - A wait that ends in a refusal, or whose caller drops it, leaves the queue; only the first is in the wait's
//!   duration.
//! - A request whose permit went stale, because what is below the limiter took long to be ready, waits for another one:
//!   that is a wait of its own if it has to, and no second grant.

use ::metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

use crate::telemetry::{event, metric};

/// Upper bounds for a histogram of durations, in seconds: those that OpenTelemetry's semantic conventions advise for
/// `http.client.request.duration`.
///
/// The facade has no buckets; they are set in the recorder, and without them Prometheus' exporter makes summaries. Waits
/// and pauses can be longer than the last of them.
pub const BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// Describes the metrics to the recorder that is installed, and records them from now on, in the whole program.
///
/// Again, for another recorder, it describes them to that one, too.
pub fn enable() {
    use Unit::{Count, Seconds};
    describe_histogram!(metric::REQUEST_DURATION, Seconds, "Duration of HTTP client requests.");
    describe_histogram!(metric::CALL_DURATION, Seconds, "Duration of calls, with their waits and back-offs.");
    describe_histogram!(event::WAIT_DURATION, Seconds, "Duration of the waits for a permit.");
    describe_histogram!(event::PAUSE_DURATION, Seconds, "Pauses that the server asked for.");
    describe_gauge!(event::QUEUE, Count, "Requests that wait for a permit.");
    describe_counter!(event::GRANTS, Count, "Requests that were granted their permits, once each.");
    describe_counter!(event::REFUSALS, Count, "Requests that the limiter refused, by reason.");
    describe_counter!(event::RETRIES, Count, "Further attempts that were decided on, by reason.");
    describe_counter!(event::GIVE_UPS, Count, "Calls whose failure was not tried again, by reason.");
    describe_counter!(event::KEY_REFRESHES, Count, "Refreshes of a key, by outcome.");
    describe_counter!(event::KEY_REFUSALS, Count, "Keys that the server refused and that are replaced.");
    #[cfg(feature = "redis")]
    super::redis::describe_metrics();
    metric::switch_on();
}
