//! Tests the metrics. The tests read them from the debugging recorder of `metrics-util`, and compare them with the
//! table in the docs of `adapter::metrics`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::ready,
    sync::{
        Once,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use metrics::LocalRecorderGuard;
use metrics_util::{
    MetricKind,
    debugging::{DebugValue, DebuggingRecorder, Snapshotter},
};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_outbound::{
    ApiKey, BoxError, Quota, adapter,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, FreshKey, KeySource, Origin, RefreshingKey},
    limit::{LocalLimiter, RateLimitLayer},
    preset,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    test_util::ScriptedResponse,
    timeout::{AttemptTimeoutLayer, TotalTimeoutLayer},
};

#[cfg(feature = "redis")]
use crate::support::store;
use crate::support::{
    Content,
    Scripted::{self, *},
    ScriptedService, get, refuse_for_tokens_and_for_requests, request, secs,
};

const URI: &str = "https://api.example.com/v1";

struct Recorder(Snapshotter);

/// The values of each metric series. A key consists of the metric's name and its sorted labels. The names lack the
/// prefix `tower_outbound.`.
type Series = BTreeMap<String, Vec<f64>>;

impl Recorder {
    /// Enables the metrics of the process, and records the metrics of this thread until the guard is dropped.
    fn enabled() -> (Self, LocalRecorderGuard<'static>) {
        static DISABLED: Once = Once::new();
        // The first test of the process checks that nothing is recorded before `enable`.
        DISABLED.call_once(|| {
            let disabled = thread::spawn(|| {
                let (recorder, _guard) = Self::install();
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                runtime.enable_time().start_paused(true).build().unwrap().block_on(record_everything());
                assert_eq!(recorder.series(), Series::new());
            });
            disabled.join().unwrap();
            adapter::metrics::enable();
        });
        Self::install()
    }

    fn install() -> (Self, LocalRecorderGuard<'static>) {
        // Leaks a few bytes for each test, because the guard borrows the recorder.
        let recorder: &'static _ = Box::leak(Box::new(DebuggingRecorder::new()));
        (Self(recorder.snapshotter()), metrics::set_default_local_recorder(recorder))
    }

    /// Returns the series, and resets their values.
    fn series(&self) -> Series {
        let rows = self.0.snapshot().into_vec().into_iter().map(|(key, _, _, value)| {
            let mut labels: Vec<_> =
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            labels.sort();
            let name = key.key().name().trim_start_matches("tower_outbound.");
            let values = match value {
                DebugValue::Counter(count) => vec![count as f64],
                DebugValue::Gauge(value) => vec![value.0],
                DebugValue::Histogram(values) => values.iter().map(|value| value.0).collect(),
            };
            (format!("{name} {}", labels.join(" ")).trim_end().to_owned(), values)
        });
        rows.collect()
    }
}

/// Returns a stack of all layers that record metrics. The stack sends at most one request per second.
fn stack(
    script: &[Scripted],
) -> impl tower::Service<http::Request<Content>, Response: fmt::Debug, Error = tower_outbound::Error> + Clone
{
    let quota = Quota::per_second(2).unwrap().with_burst(1).unwrap().without_margin();
    ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates"))
        .layer(TotalTimeoutLayer::new(secs(60)).unwrap())
        .layer(RetryLayer::new().with_seed(1))
        .layer(RateLimitLayer::new(LocalLimiter::token_bucket(quota)).with_max_queue(1))
        .layer(AttemptSpanLayer::new())
        .layer(AttemptTimeoutLayer::new(secs(5)).unwrap())
        .service(ScriptedService::new(script.iter().copied()))
}

/// Records a value for every metric except the metrics of a limiter's store.
async fn record_everything() {
    let service = stack(&[Headers(429, &[("retry-after", "3")]), Status(200), Status(404), Status(200)]);
    for _ in 0..2 {
        service.clone().oneshot(get(URI)).await.map(drop).unwrap();
    }
    let mut waiting = task::spawn(service.clone().oneshot(get(URI)));
    assert_pending!(waiting.poll());
    assert!(service.oneshot(get(URI)).await.is_err(), "the queue is full");
    drop(waiting);

    let limits = Headers(200, &[("ratelimit", "limit=100, remaining=99, reset=60")]);
    let adaptive = preset::realtime_messaging(URI).unwrap().with_api_key(ApiKey::new("k3y").unwrap());
    let service = adaptive.layer().unwrap().layer(ScriptedService::new([limits]));
    service.oneshot(get(URI)).await.map(drop).unwrap();

    let is_fetched = AtomicBool::new(false);
    let keys = KeySource::from(RefreshingKey::new(move || {
        let first = !is_fetched.swap(true, Relaxed);
        let fetched = ApiKey::new("k3y").map(FreshKey::new).map_err(BoxError::from);
        ready(if first { fetched } else { Err("closed".into()) })
    }));
    let service = preset::currency_rates(URI).unwrap().with_keys(keys).layer().unwrap();
    let service = service.layer(ScriptedService::new([Status(401)]));
    for _ in 0..2 {
        let _ = service.clone().oneshot(get(URI)).await;
    }
}

/// Parses the table in the docs of `adapter::metrics`. Returns the kind, name and labels of each row.
fn documented() -> BTreeSet<(String, String, BTreeSet<String>)> {
    let rows = include_str!("../../src/adapter/metrics.rs").lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("//! | `")?.trim_end_matches(['|', ' ']).split(" | ").collect();
        let [name, kind, _, ref labels @ ..] = cells[..] else { panic!("{line}") };
        let unquoted = |cell: &str| cell.trim_matches('`').to_owned();
        Some((kind.to_owned(), unquoted(name), labels.concat().split_whitespace().map(unquoted).collect()))
    });
    rows.collect()
}

#[tokio::test(start_paused = true)]
async fn the_table_in_the_docs_lists_every_metric_with_its_kind_and_labels() {
    let (recorder, _guard) = Recorder::enabled();
    adapter::metrics::enable();
    record_everything().await;
    // A call without a response also records its duration, with the label `error.type`.
    let _ = stack(&[NoResponse]).oneshot(request("POST", URI)).await;
    let with_store = with_store().await;
    let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (key, unit, description, _) in recorder.0.snapshot().into_vec() {
        assert!(unit.is_some() && description.is_some(), "{key:?} has no unit or no description");
        let kind = match key.kind() {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let labels = found.entry((kind.to_owned(), key.key().name().to_owned())).or_default();
        labels.extend(key.key().labels().map(|label| label.key().to_owned()));
    }
    let found: BTreeSet<_> = found.into_iter().map(|((kind, name), labels)| (kind, name, labels)).collect();
    let mut documented = documented();
    assert_eq!(documented.len(), 14);
    if !with_store {
        documented.retain(|(_, name, _)| !name.contains(".limit.store."));
    }
    assert_eq!(found, documented);
}

/// Stops and restarts the Redis server of a shared limiter. Returns `false` without the feature `redis`, or if
/// redis-server is missing.
async fn with_store() -> bool {
    #[cfg(feature = "redis")]
    return store::lost_and_found().await;
    #[cfg(not(feature = "redis"))]
    false
}

#[tokio::test(start_paused = true)]
async fn a_failed_grpc_call_with_http_status_200_is_labelled_with_its_grpc_code() {
    let (recorder, _guard) = Recorder::enabled();
    stack(&[Headers(200, &[("grpc-status", "7")])]).oneshot(request("POST", URI)).await.map(drop).unwrap();
    let series = recorder.series();
    assert!(series.contains_key("call.duration error.type=PERMISSION_DENIED service=rates"), "{series:?}");
    let attempt = "http.client.request.duration error.type=PERMISSION_DENIED http.request.method=POST \
                   http.response.status_code=200 server.address=api.example.com server.port=443 service=rates";
    assert_eq!(series[attempt].len(), 1, "{series:?}");
}

#[tokio::test(start_paused = true)]
async fn labels_show_hosts_in_lower_case_and_unknown_statuses_unchanged() {
    let (recorder, _guard) = Recorder::enabled();
    for (uri, status) in [("https://API.Example.com/v1", 299), (URI, 299), (URI, 999)] {
        let service = AttemptSpanLayer::new().layer(ScriptedService::new([Status(status)]));
        service.oneshot(get(uri)).await.unwrap();
    }
    let row = |status| {
        format!(
            "http.client.request.duration http.request.method=GET http.response.status_code={status} \
             server.address=api.example.com server.port=443"
        )
    };
    let counted = recorder.series().into_iter().map(|(name, values)| (name, values.len()));
    assert!(counted.eq([(row(299), 2), (row(999), 1)]));
}

#[tokio::test(start_paused = true)]
async fn the_durations_of_a_call_and_of_each_attempt_are_recorded_separately() {
    let (recorder, _guard) = Recorder::enabled();
    let service = stack(&[Delayed(40, 503), Delayed(70, 200)]);
    service
        .oneshot(request("PUT", "https://me:pw@api.example.com:8443/v1?key=s3cret"))
        .await
        .map(drop)
        .unwrap();
    let series = recorder.series();
    let values = |name: &str| &series[name][..];
    let host = "server.address=api.example.com server.port=8443 service=rates";
    let failed = format!(
        "http.client.request.duration error.type=503 http.request.method=PUT http.response.status_code=503 {host}"
    );
    let succeeded =
        format!("http.client.request.duration http.request.method=PUT http.response.status_code=200 {host}");
    assert_eq!((values(&failed), values(&succeeded)), (&[0.040][..], &[0.070][..]));
    let [call] = values("call.duration service=rates") else { panic!("{series:?}") };
    let [wait] = values("limit.wait.duration service=rates") else { panic!("{series:?}") };
    assert!(*call >= 0.110 + wait && *wait > 0.5 && *call < 1.2, "{call} {wait}");
    assert_eq!(values("limit.grants service=rates"), [2.0]);
    assert_eq!(values("limit.queue service=rates"), [0.0]);
    assert_eq!(values("retry.retries reason=transient service=rates"), [1.0]);
    assert_eq!(series.len(), 7, "{series:?}");
}

#[tokio::test(start_paused = true)]
async fn the_queue_gauge_shows_the_requests_that_wait_now() {
    let (recorder, _guard) = Recorder::enabled();
    let service = stack(&[Status(200)]);
    service.clone().oneshot(get(URI)).await.map(drop).unwrap();
    // The recorder returns the change of a gauge since the previous reading of the gauge.
    let mut length = 0.0;
    let mut queue = || {
        length += recorder.series()["limit.queue service=rates"][0];
        length
    };
    let mut waiting = task::spawn(service.clone().oneshot(get(URI)));
    assert_pending!(waiting.poll());
    assert_eq!(queue(), 1.0);
    drop(waiting);
    assert_eq!(queue(), 0.0);
    assert!(!recorder.series().contains_key("limit.wait.duration service=rates"), "no wait was completed");
    let mut waiting = task::spawn(service.oneshot(get(URI)));
    assert_pending!(waiting.poll());
    assert_eq!(queue(), 1.0);
    tokio::time::advance(secs(1)).await;
    assert!(assert_ready!(waiting.poll()).is_ok());
    assert_eq!(queue(), 0.0);
}

#[tokio::test(start_paused = true)]
async fn refusals_are_labelled_with_the_unit_whose_quota_delays_them() {
    let (recorder, _guard) = Recorder::enabled();
    refuse_for_tokens_and_for_requests().await;
    let series = recorder.series();
    for unit in ["tokens", "requests"] {
        let name = format!("limit.refusals reason=max_wait unit={unit}");
        assert_eq!(series.get(&name), Some(&vec![1.0]), "{series:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_count_refusals_and_retries_and_give_ups_by_reason() {
    let (recorder, _guard) = Recorder::enabled();
    record_everything().await;
    let series = recorder.series();
    for (name, values) in [
        ("limit.refusals reason=queue_full service=rates unit=requests", [1.0]),
        ("limit.pause.duration service=rates", [3.0]),
        ("retry.retries reason=requested service=rates", [1.0]),
        // One call received a 404, and the limiter refused another call.
        ("retry.give_ups reason=not_retryable service=rates", [2.0]),
        ("auth.refreshes outcome=refreshed", [1.0]),
        ("auth.refreshes outcome=failed", [1.0]),
        ("auth.rejections", [1.0]),
    ] {
        assert_eq!(series.get(name).map(Vec::as_slice), Some(values.as_slice()), "{name} in {series:#?}");
    }
}

#[cfg(feature = "client")]
#[tokio::test(start_paused = true)]
async fn metrics_count_one_call_and_each_retry_if_response_bodies_break() {
    for (good, give_up) in [(3, None), (usize::MAX, Some(1.0))] {
        let (recorder, _guard) = Recorder::enabled();
        let service = ScriptedService::from_fn(move |seen| {
            let response = ScriptedResponse::status(200).with_body("part");
            if seen.number == good { response } else { response.with_body_stalled() }
        });
        let client =
            preset::currency_rates(URI).unwrap().without_credential().with_body_idle_timeout(secs(2));
        let client = client.client_with_service(service).unwrap();
        assert_eq!(client.get("/v1").fetch_text().await.is_ok(), give_up.is_none());
        let series = recorder.series();
        let name = |name: &str| format!("{name} service=currency_rates");
        assert_eq!(series[&name("retry.retries reason=transient")], [2.0], "{series:?}");
        let give_ups = series.get(&name("retry.give_ups reason=exhausted"));
        assert_eq!(give_ups.and_then(|values| values.first()).copied(), give_up);
        assert_eq!(series[&name("call.duration")], [0.0], "{series:?}");
        let attempts = |row: &&String| row.starts_with("http.client.request.duration");
        assert_eq!(series.keys().find(attempts).map(|row| series[row].len()), Some(3), "{series:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_include_attempts_ended_by_the_deadline_but_not_dropped_attempts() {
    let (recorder, _guard) = Recorder::enabled();
    let service = ServiceBuilder::new()
        .layer(TotalTimeoutLayer::new(secs(2)).unwrap())
        .layer(AttemptSpanLayer::new())
        .service(ScriptedService::new([NoResponse]));
    assert!(service.clone().oneshot(request("PURGE", "http://[::1]/a")).await.is_err());
    let row = "http.client.request.duration error.type=deadline http.request.method=_OTHER \
               server.address=::1 server.port=80";
    assert_eq!(recorder.series(), Series::from([(row.to_owned(), vec![2.0])]));

    let mut dropped = task::spawn(service.oneshot(get(URI)));
    assert_pending!(dropped.poll());
    drop(dropped);
    assert!(recorder.series().values().all(Vec::is_empty));
}

/// The refresh of the key takes so long that the permit expires.
#[tokio::test(start_paused = true)]
async fn metrics_count_one_grant_for_a_call_whose_permit_was_replaced() {
    let (recorder, _guard) = Recorder::enabled();
    let slow_key = RefreshingKey::new(|| async {
        tokio::time::sleep(secs(2)).await;
        Ok::<_, BoxError>(FreshKey::new(ApiKey::new("k3y")?))
    });
    let auth = AuthLayer::new(slow_key, Origin::parse(URI).unwrap()).unwrap();
    let bucket =
        LocalLimiter::token_bucket(Quota::new(2, secs(20)).unwrap().with_burst(1).unwrap().without_margin());
    let service = ScriptedService::new([Status(200)]);
    (RateLimitLayer::new(bucket), auth).layer(service).oneshot(get(URI)).await.unwrap();
    let series = recorder.series();
    assert_eq!(series["limit.grants"], [1.0], "{series:#?}");
    let [wait] = series["limit.wait.duration"][..] else {
        panic!("expected only the wait for the second permit: {series:#?}")
    };
    assert!(wait > 10.0, "{wait}");
}
