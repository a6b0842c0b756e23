//! Compares all log events and spans with the tables in the documentation of `request_id`.

use super::*;

/// Parses the rows of the two tables in `docs`.
fn documented_rows(docs: &str) -> BTreeSet<Row> {
    let mut kind = None;
    let mut rows = BTreeSet::new();
    let mut lines = docs.lines();
    while let Some(line) = lines.next() {
        let Some(line) = line.strip_prefix("//! |").filter(|line| line.matches(" | ").count() > 2) else {
            kind = None;
            continue;
        };
        let cells: Vec<_> = line.trim().trim_end_matches(['|', ' ']).split(" | ").collect();
        let [target, level, name, _, ref fields @ ..] = cells[..] else { panic!("too few cells: {line}") };
        let fields = fields.concat();
        if kind.is_none() {
            let separator = lines.next().and_then(|line| line.strip_prefix("//! |-"));
            assert!(target == "target" && separator.is_some(), "row outside a table: {line}");
            kind = Some(if name == "span" { "span" } else { "event" });
            continue;
        }
        let plain = |cell: &str| cell.trim_matches('`').to_owned();
        let fields = fields.split_whitespace().map(plain).collect();
        rows.insert((kind.unwrap(), plain(target), level.to_owned(), plain(name), fields));
    }
    rows
}

/// The calls of this test cause every documented span and event.
#[tokio::test(start_paused = true)]
async fn documentation_lists_all_spans_and_events_with_their_fields() {
    let (capture, _guard) = Capture::all();
    let script = [
        Headers(429, &[("retry-after", "3")]),
        Status(200),
        Status(404),
        Status(503),
        Status(503),
        Status(503),
    ];
    let quota = Quota::per_minute(2).unwrap().with_burst(1).unwrap();
    let preset = preset::currency_rates(URI).unwrap().with_api_key(ApiKey::new("k3y").unwrap());
    let preset = preset.with_quota(quota).with_total_timeout(secs(600));
    let service = preset.layer().unwrap().layer(ScriptedService::new(script));
    for _ in 0..3 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    let limits = Headers(200, &[("ratelimit", "limit=100, remaining=99, reset=60")]);
    let adaptive = preset::realtime_messaging(URI).unwrap().with_api_key(ApiKey::new("k3y").unwrap());
    let service = adaptive.layer().unwrap().layer(ScriptedService::new([limits, RetryAfter(429, "7200")]));
    for _ in 0..2 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    // `with_info_spans` raises the level of both spans.
    let raised = preset.clone().with_request_id(RequestIdLayer::new().with_info_spans()).layer().unwrap();
    raised.layer(ScriptedService::new([Status(200)])).oneshot(get(URI)).await.unwrap();
    let wrong = ServiceBuilder::new()
        .layer(RateLimitLayer::new(LocalLimiter::without_quota()))
        .layer(RetryLayer::new());
    wrong.service(ScriptedService::new([Status(503), Status(200)])).oneshot(get(URI)).await.unwrap();
    let wrong = (RetryLayer::new(), RequestIdLayer::new());
    wrong.layer(ScriptedService::new([Status(503), Status(200)])).oneshot(get(URI)).await.unwrap();
    let wrong = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RateLimitLayer::new(LocalLimiter::paced_window(quota)))
        .layer(TotalTimeoutLayer::new(secs(60)).unwrap())
        .service(ScriptedService::new([Status(200)]));
    for _ in 0..2 {
        wrong.clone().oneshot(get(URI)).await.unwrap();
    }
    let keys = RefreshingKey::new(|| ready(ApiKey::new("k3y").map(FreshKey::new).map_err(BoxError::from)));
    let wrong = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(AuthLayer::new(keys, Origin::parse(URI).unwrap()).unwrap())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(LocalLimiter::paced_window(quota)))
        .service(ScriptedService::new([Status(503), Status(503), Status(200)]));
    wrong.oneshot(get(URI)).await.unwrap();
    let hourly = Quota::per_hour(2).unwrap().with_burst(1).unwrap();
    let service = preset.with_quota(hourly).layer().unwrap().layer(ScriptedService::new([Status(200)]));
    for _ in 0..3 {
        let _ = service.clone().oneshot(get(URI)).await;
    }
    replace_keys().await;
    let has_store_events = lose_and_restore_store().await;
    let mut documented = documented_rows(include_str!("../../src/request_id/mod.rs"));
    // The event of a call is emitted at two places, one of which has fewer fields.
    let is_part = |(kind, target, level, name, fields): &Row, of: &Row| {
        (kind, target, level, name) == (&of.0, &of.1, &of.2, &of.3)
            && fields.len() < of.4.len()
            && fields.is_subset(&of.4)
    };
    let all = capture.rows();
    let emitted = all
        .iter()
        .filter(|row| !all.iter().any(|other| is_part(row, other)))
        .cloned()
        .collect::<BTreeSet<_>>();
    assert_eq!(documented.len(), 28);
    if !has_store_events {
        documented.retain(|row| !format!("{row:?}").contains("limiter's store"));
    }
    assert_eq!(emitted, documented);
}

/// Stops and restarts the Redis server of a shared limiter. Returns `false` if redis-server is not installed.
async fn lose_and_restore_store() -> bool {
    #[cfg(all(feature = "metrics", feature = "redis"))]
    return support::store::lost_and_found().await;
    #[cfg(not(all(feature = "metrics", feature = "redis")))]
    false
}

/// Causes all events about keys. A provider returns a key that the server rejects, and then the provider fails. A key
/// file changes.
async fn replace_keys() {
    let called = AtomicBool::new(false);
    let provider = RefreshingKey::new(move || {
        let first = !called.swap(true, Relaxed);
        let key = ApiKey::new("k3y").map(FreshKey::new).map_err(BoxError::from);
        ready(if first { key } else { Err("closed".into()) })
    });
    let file = env::temp_dir().join(format!("tower-outbound-reference-{}", std::process::id()));
    fs::write(&file, "key-1").unwrap();
    let changing = KeySource::from_file_every(&file, secs(1)).unwrap();
    for keys in [KeySource::from(provider), changing] {
        let preset = preset::currency_rates(URI).unwrap().with_keys(keys);
        let service = preset.layer().unwrap().layer(ScriptedService::new([Status(401)]));
        for _ in 0..2 {
            let _ = service.clone().oneshot(get(URI)).await;
            fs::write(&file, "key-2").unwrap();
            tokio::time::advance(secs(2)).await;
        }
    }
    fs::remove_file(&file).unwrap();
}
