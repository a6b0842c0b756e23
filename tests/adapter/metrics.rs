//! The metrics, read back from the facade's own recorder, and the manual of `adapter::metrics` as their contract.

use crate::support::{self, store};
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

use crate::support::{
    Scripted::{self, *},
    ScriptedService, get, request, secs,
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
    limit::{RateLimitLayer, TokenBucket},
    preset,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::TimeoutLayer,
};

const URI: &str = "https://api.example.com/v1";

struct Meters(Snapshotter);

/// A series as one line, and what was counted or recorded in it.
type Series = BTreeMap<String, Vec<f64>>;

impl Meters {
    /// For this thread, until the guard is dropped.
    fn read() -> (Self, LocalRecorderGuard<'static>) {
        static OFF: Once = Once::new();
        // Whichever test comes first sees that nothing is counted before it was asked for.
        OFF.call_once(|| {
            let off = thread::spawn(|| {
                let (meters, _guard) = Self::install();
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                runtime.enable_time().start_paused(true).build().unwrap().block_on(everything());
                assert_eq!(meters.series(), Series::new());
            });
            off.join().unwrap();
            adapter::metrics::enable();
        });
        Self::install()
    }

    fn install() -> (Self, LocalRecorderGuard<'static>) {
        // Leaked, for the guard borrows it: a few bytes a test.
        let recorder: &'static _ = Box::leak(Box::new(DebuggingRecorder::new()));
        (Self(recorder.snapshotter()), metrics::set_default_local_recorder(recorder))
    }

    /// What has come since the last time.
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

/// A stack with all that counts, one permit a second, over this script.
fn stack(
    script: &[Scripted],
) -> impl tower::Service<http::Request<support::Content>, Response: fmt::Debug, Error = tower_outbound::Error>
+ Clone {
    let quota = Quota::per_second(2).unwrap().with_burst(1).unwrap().without_margin();
    ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates"))
        .layer(TimeoutLayer::total(secs(60)).unwrap())
        .layer(RetryLayer::new().with_seed(1))
        .layer(RateLimitLayer::new(TokenBucket::new(quota)).with_max_queue(1))
        .layer(AttemptSpanLayer::new())
        .layer(TimeoutLayer::per_attempt(secs(5)).unwrap())
        .service(ScriptedService::new(script.iter().copied()))
}

/// Brings all that can be counted to be counted.
async fn everything() {
    let service = stack(&[Headers(429, &[("retry-after", "3")]), Status(200), Status(404), Status(200)]);
    for _ in 0..2 {
        service.clone().oneshot(get(URI)).await.map(drop).unwrap();
    }
    let mut waiting = task::spawn(service.clone().oneshot(get(URI)));
    assert_pending!(waiting.poll());
    assert!(service.oneshot(get(URI)).await.is_err(), "the queue has room for one");
    drop(waiting);

    let asked = AtomicBool::new(false);
    let keys = KeySource::from(RefreshingKey::new(move || {
        let first = !asked.swap(true, Relaxed);
        let fetched = ApiKey::new("k3y").map(FreshKey::new).map_err(BoxError::from);
        ready(if first { fetched } else { Err("closed".into()) })
    }));
    let service = preset::currency_rates(URI).unwrap().with_keys(keys).layer().unwrap();
    let service = service.layer(ScriptedService::new([Status(401)]));
    for _ in 0..2 {
        let _ = service.clone().oneshot(get(URI)).await;
    }
}

/// The rows of the manual's table: kind, name and labels.
fn documented() -> BTreeSet<(String, String, BTreeSet<String>)> {
    let rows = include_str!("../../src/adapter/metrics.rs").lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("//! | `")?.trim_end_matches(['|', ' ']).split(" | ").collect();
        let [name, kind, _, ref labels @ ..] = cells[..] else { panic!("{line}") };
        let plain = |cell: &str| cell.trim_matches('`').to_owned();
        Some((kind.to_owned(), plain(name), labels.concat().split_whitespace().map(plain).collect()))
    });
    rows.collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_counted_is_what_the_manual_says() {
    let (meters, _guard) = Meters::read();
    adapter::metrics::enable();
    everything().await;
    // A failure without a status, too.
    let _ = stack(&[NoResponse]).oneshot(request("POST", URI)).await;
    let with_store = with_store().await;
    let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (key, unit, description, _) in meters.0.snapshot().into_vec() {
        assert!(unit.is_some() && description.is_some(), "{key:?} is not described");
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
    assert_eq!(documented.len(), 13);
    if !with_store {
        documented.retain(|(_, name, _)| !name.contains(".limit.store."));
    }
    assert_eq!(found, documented);
}

/// Loses and restores the store of a shared limiter. Returns `false` if redis-server is missing.
async fn with_store() -> bool {
    #[cfg(feature = "redis")]
    return store::lost_and_found().await;
    #[cfg(not(feature = "redis"))]
    false
}

/// HTTP says 200 of it.
#[tokio::test(start_paused = true)]
async fn a_grpc_call_that_failed_is_counted_by_its_code() {
    let (meters, _guard) = Meters::read();
    stack(&[Headers(200, &[("grpc-status", "7")])]).oneshot(request("POST", URI)).await.map(drop).unwrap();
    let series = meters.series();
    assert!(series.contains_key("call.duration error.type=PERMISSION_DENIED service=rates"), "{series:?}");
    let attempt = "http.client.request.duration error.type=PERMISSION_DENIED http.request.method=POST \
                   http.response.status_code=200 server.address=api.example.com server.port=443 service=rates";
    assert_eq!(series[attempt].len(), 1, "{series:?}");
}

#[tokio::test(start_paused = true)]
async fn labels_a_failure_with_its_kind_and_a_service_with_a_name_from_data() {
    let (meters, _guard) = Meters::read();
    let name = format!("tenant-{}", 7);
    let layers = (RequestIdLayer::new().with_service(name), AttemptSpanLayer::new());
    layers.layer(ScriptedService::new([Refused])).oneshot(get(URI)).await.unwrap_err();
    let series = meters.series();
    let attempt = "http.client.request.duration error.type=connect_refused http.request.method=GET \
                   server.address=api.example.com server.port=443 service=tenant-7";
    for row in ["call.duration error.type=connect_refused service=tenant-7", attempt] {
        assert_eq!(series.get(row).map(Vec::len), Some(1), "{series:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_and_its_call_are_measured_each_for_itself() {
    let (meters, _guard) = Meters::read();
    let service = stack(&[Delayed(40, 503), Delayed(70, 200)]);
    service
        .oneshot(request("PUT", "https://me:pw@api.example.com:8443/v1?key=s3cret"))
        .await
        .map(drop)
        .unwrap();
    let series = meters.series();
    let of = |name: &str| &series[name][..];
    let host = "server.address=api.example.com server.port=8443 service=rates";
    let failed = format!(
        "http.client.request.duration error.type=503 http.request.method=PUT http.response.status_code=503 {host}"
    );
    let answered =
        format!("http.client.request.duration http.request.method=PUT http.response.status_code=200 {host}");
    assert_eq!((of(&failed), of(&answered)), (&[0.040][..], &[0.070][..]));
    let [call] = of("call.duration service=rates") else { panic!("{series:?}") };
    let [wait] = of("limit.wait.duration service=rates") else { panic!("{series:?}") };
    assert!(*call >= 0.110 + wait && *wait > 0.5 && *call < 1.2, "{call} {wait}");
    assert_eq!(of("limit.grants service=rates"), [2.0]);
    assert_eq!(of("limit.queue service=rates"), [0.0]);
    assert_eq!(of("retry.retries reason=transient service=rates"), [1.0]);
    assert_eq!(series.len(), 7, "{series:?}");
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_who_waits_now() {
    let (meters, _guard) = Meters::read();
    let service = stack(&[Status(200)]);
    service.clone().oneshot(get(URI)).await.map(drop).unwrap();
    // The recorder gives what has changed since it was read.
    let mut length = 0.0;
    let mut queue = || {
        length += meters.series()["limit.queue service=rates"][0];
        length
    };
    let mut waiting = task::spawn(service.clone().oneshot(get(URI)));
    assert_pending!(waiting.poll());
    assert_eq!(queue(), 1.0);
    drop(waiting);
    assert_eq!(queue(), 0.0);
    assert!(
        !meters.series().contains_key("limit.wait.duration service=rates"),
        "nobody has waited to the end"
    );
    let mut waiting = task::spawn(service.oneshot(get(URI)));
    assert_pending!(waiting.poll());
    assert_eq!(queue(), 1.0);
    tokio::time::advance(secs(1)).await;
    assert!(assert_ready!(waiting.poll()).is_ok());
    assert_eq!(queue(), 0.0);
}

#[tokio::test(start_paused = true)]
async fn refusals_pauses_and_give_ups_are_counted_by_reason() {
    let (meters, _guard) = Meters::read();
    everything().await;
    let series = meters.series();
    for (name, values) in [
        ("limit.refusals reason=queue_full service=rates", [1.0]),
        ("limit.pause.duration service=rates", [3.0]),
        ("retry.retries reason=requested service=rates", [1.0]),
        // The 404, and the refusal.
        ("retry.give_ups reason=not_retryable service=rates", [2.0]),
        ("auth.refreshes outcome=refreshed", [1.0]),
        ("auth.refreshes outcome=failed", [1.0]),
        ("auth.refusals", [1.0]),
    ] {
        assert_eq!(series.get(name).map(Vec::as_slice), Some(values.as_slice()), "{name} in {series:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn counts_an_attempt_cut_off_by_the_deadline_but_not_one_that_its_caller_drops() {
    let (meters, _guard) = Meters::read();
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::total(secs(2)).unwrap())
        .layer(AttemptSpanLayer::new())
        .service(ScriptedService::new([NoResponse]));
    assert!(service.clone().oneshot(request("PURGE", "http://[::1]/a")).await.is_err());
    let row = "http.client.request.duration error.type=deadline http.request.method=_OTHER \
               server.address=::1 server.port=80";
    assert_eq!(meters.series(), Series::from([(row.to_owned(), vec![2.0])]));

    let mut dropped = task::spawn(service.oneshot(get(URI)));
    assert_pending!(dropped.poll());
    drop(dropped);
    assert!(meters.series().values().all(Vec::is_empty));
}

/// The key comes so late that the permit is renewed.
#[tokio::test(start_paused = true)]
async fn a_request_whose_permit_is_renewed_is_granted_once() {
    let (meters, _guard) = Meters::read();
    let slow = RefreshingKey::new(|| async {
        tokio::time::sleep(secs(2)).await;
        Ok::<_, BoxError>(FreshKey::new(ApiKey::new("k3y")?))
    });
    let auth = AuthLayer::new(slow, Origin::parse(URI).unwrap()).unwrap();
    let bucket = TokenBucket::new(Quota::new(2, secs(20)).unwrap().with_burst(1).unwrap().without_margin());
    let probe = ScriptedService::new([Status(200)]);
    (RateLimitLayer::new(bucket.clone()), auth).layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    let series = meters.series();
    assert_eq!(series["limit.grants"], [1.0], "{series:#?}");
    let [waited] = series["limit.wait.duration"][..] else {
        panic!("one wait, for the second permit: {series:#?}")
    };
    assert!(waited > 10.0, "{waited}");
}

#[tokio::test(start_paused = true)]
async fn a_host_is_one_however_it_is_written_and_a_status_is_what_the_server_said() {
    let (meters, _guard) = Meters::read();
    for (uri, status) in [("https://API.Example.com/v1", 299), (URI, 299), (URI, 999)] {
        AttemptSpanLayer::new()
            .layer(ScriptedService::new([Status(status)]))
            .oneshot(get(uri))
            .await
            .unwrap();
    }
    let row = |status| {
        format!(
            "http.client.request.duration http.request.method=GET http.response.status_code={status} \
             server.address=api.example.com server.port=443"
        )
    };
    let counted = meters.series().into_iter().map(|(name, values)| (name, values.len()));
    assert!(counted.eq([(row(299), 2), (row(999), 1)]));
}
