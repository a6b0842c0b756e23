//! Tests that the event of a call shows where its time went, and has the same fields with all features of the crate.

use tower_outbound::{
    Body, Report,
    auth::{BoxSignFuture, Sign},
    body::ReplayBody,
};

use super::*;

/// Makes the last of several calls through a stack with a limiter, and returns its event at INFO.
async fn event_of_last_call(
    limiter: LocalLimiter,
    total: u64,
    calls: usize,
    script: &[Scripted],
) -> capture::Line {
    let (capture, _guard) = Capture::at(LevelFilter::INFO);
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates"))
        .layer(TotalTimeoutLayer::new(millis(total)).unwrap())
        .layer(RetryLayer::new().with_max_attempts(9).unwrap())
        .layer(RateLimitLayer::new(limiter))
        .layer(AttemptTimeoutLayer::new(secs(3)).unwrap())
        .service(ScriptedService::new(script.iter().copied()));
    let mut running: Vec<_> = (0..calls).map(|_| task::spawn(service.clone().oneshot(get(URI)))).collect();
    for earlier in &mut running[..calls - 1] {
        let _ = earlier.poll();
    }
    let _ = running.pop().unwrap().await;
    capture.of(CALL).pop().unwrap()
}

/// Returns the names and the durations in milliseconds of a list such as `503@27ms, timeout@3s`.
fn attempts_in(log: &str) -> Vec<(&str, f64)> {
    log.split(", ")
        .map(|text| {
            let (name, time) = text.split_once('@').unwrap();
            let millis = match time.strip_suffix("ms") {
                Some(millis) => millis.parse::<f64>().unwrap(),
                None => time.strip_suffix('s').unwrap().parse::<f64>().unwrap() * 1_000.0,
            };
            (name, millis)
        })
        .collect()
}

fn number(event: &capture::Line, field: &str) -> f64 {
    event.fields.get(field).map_or(0.0, |value| value.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn queued_backoff_and_attempts_add_up_to_the_elapsed_time() {
    let bucket = || {
        let quota = Quota::per_second(2).unwrap().with_burst(1).unwrap().without_margin();
        LocalLimiter::token_bucket(quota)
    };
    let slow = [Delayed(27, 503), NoResponse, Refused, Io(ConnectionReset), Delayed(2_345, 200)];
    let names = ["503", "timeout", "connect_refused(not_sent)", "reset", "200"];
    for (total, script, names, stop_reason) in [
        (60_000, &slow[..], &names[..], None),
        // The deadline ends the second attempt.
        (2_000, &slow, &["503", "deadline"], Some("deadline")),
        (60_000, &[Headers(429, &[("retry-after", "5")]), Delayed(10, 200)], &["429", "200"], None),
    ] {
        let event = event_of_last_call(bucket(), total, 1, script).await;
        let attempts = attempts_in(&event.fields["attempt_log"]);
        assert_eq!(attempts.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
        assert_eq!(event.fields["attempts"], names.len().to_string());
        assert_eq!(event.fields.get("stop_reason").map(String::as_str), stop_reason);
        let (queued, backoff) = (number(&event, "queued_ms"), number(&event, "backoff_ms"));
        assert!((queued > 100.0 || names[0] == "429") && backoff > 0.0, "{event:?}");
        let sum = queued + backoff + attempts.iter().map(|(_, millis)| millis).sum::<f64>();
        // Each duration is rounded to a hundredth of a second at most.
        let rounding = 0.1 + 5.0 * attempts.len() as f64;
        assert!((sum - number(&event, "elapsed_ms")).abs() <= rounding, "{sum}: {event:?}");
    }
}

/// A limit of requests in flight does not know when a request can leave, so that it cannot refuse early.
#[tokio::test(start_paused = true)]
async fn call_whose_deadline_ends_in_the_queue_shows_its_time_in_the_queue() {
    let limiter = LocalLimiter::without_quota().with_max_in_flight(1).unwrap();
    let event = event_of_last_call(limiter, 2_000, 2, &[NoResponse]).await;
    assert_eq!(number(&event, "queued_ms"), number(&event, "elapsed_ms"), "{event:?}");
    assert!(number(&event, "queued_ms") >= 2_000.0);
    assert!(!event.fields.contains_key("attempt_log") && !event.fields.contains_key("backoff_ms"));
}

#[tokio::test(start_paused = true)]
async fn event_and_spans_at_info_are_the_same_with_all_features() {
    let script = [Status(503), Status(200)];
    let service = |layer: RequestIdLayer| {
        let layers = (layer.with_service("rates"), RetryLayer::new(), AttemptSpanLayer::new());
        layers.layer(ScriptedService::new(script)).oneshot(get("https://me:pw@api.example.com/v1?key=1"))
    };
    let (capture, _guard) = Capture::at(LevelFilter::INFO);
    service(RequestIdLayer::new()).await.unwrap();
    let [event] = &capture.ours()[..] else { panic!("{:?}", capture.ours()) };
    let common = ["http.response.status_code", "attempts", "attempt_log", "backoff_ms", "elapsed_ms"];
    let alone = ["service", "request_id", "http.request.method", "url.path"];
    assert_eq!(field_names(event), sorted::<9>([&alone[..], &common].concat().try_into().unwrap()));
    assert!(capture.spans("call").is_empty() && capture.spans("attempt").is_empty());

    // If the application sets INFO spans, the span of the call has the fields that the event omits.
    let (capture, _guard) = Capture::at(LevelFilter::INFO);
    service(RequestIdLayer::new().with_info_spans()).await.unwrap();
    let [event] = &capture.ours()[..] else { panic!("{:?}", capture.ours()) };
    assert_eq!(field_names(event), sorted(common));
    assert_eq!(capture.spans("call")[0].fields["url.full"], "https://api.example.com/v1");
    assert_eq!(capture.spans("attempt").len(), 2);
}

/// The span of the call shows neither an unknown method nor a relative URI.
#[tokio::test(start_paused = true)]
async fn event_in_the_span_of_the_call_shows_what_the_span_cannot_show() {
    for (method, uri, is_shown) in [("PURGE", URI, true), ("GET", "/v1?key=1", true), ("GET", URI, false)] {
        let (capture, _guard) = Capture::all();
        RequestIdLayer::new()
            .layer(ScriptedService::new([Status(200)]))
            .oneshot(request(method, uri))
            .await
            .unwrap();
        let fields = &capture.of(CALL)[0].fields;
        let shown = ["http.request.method", "url.path"].map(|name| fields.get(name).map(String::as_str));
        assert_eq!(shown, [method, "/v1"].map(|value| is_shown.then_some(value)), "{method} {uri}");
    }
}

/// A signer that takes this long.
struct SlowSigner(u64);

impl Sign for SlowSigner {
    fn sign<'a>(&'a self, _: &'a mut http::request::Parts, _: Option<&'a bytes::Bytes>) -> BoxSignFuture<'a> {
        Box::pin(async {
            tokio::time::sleep(millis(self.0)).await;
            Ok(())
        })
    }
}

/// The threshold is 100 ms.
#[tokio::test(start_paused = true)]
async fn event_at_info_shows_the_wait_for_a_key_or_a_signature_if_the_call_is_slow() {
    async fn check<L>(layer: L, waited: u64)
    where
        L: Layer<ScriptedService, Service: Clone>,
        L::Service: Service<Request<ReplayBody<Content>>, Response = Response<Body>, Error: Into<BoxError>>,
    {
        let (capture, _guard) = Capture::at(LevelFilter::INFO);
        let service = ServiceBuilder::new()
            .layer(RequestIdLayer::new())
            .layer(RetryLayer::new())
            .layer(layer)
            .service(ScriptedService::new([Delayed(7, 200)]));
        let response = service.oneshot(get(URI)).await.unwrap();
        let report = Report::from_response(&response).unwrap();
        assert_eq!(report.attempts()[0].key_wait, millis(waited));
        let event = capture.of(CALL).pop().unwrap();
        let shown = event.fields.get("key_ms").map(String::as_str);
        let expected = format!("{waited}.0");
        assert_eq!(shown, (waited + 7 >= 100).then_some(expected.as_str()), "{event:?}");
    }
    for waited in [8_000, 93, 92] {
        let origin = || Origin::parse(URI).unwrap();
        let keys = RefreshingKey::new(move || async move {
            tokio::time::sleep(millis(waited)).await;
            ApiKey::new("k3y").map(FreshKey::new).map_err(BoxError::from)
        });
        check(AuthLayer::new(keys, origin()).unwrap(), waited).await;
        check(AuthLayer::from_sign(SlowSigner(waited), origin()).unwrap(), waited).await;
    }
}

#[tokio::test(start_paused = true)]
async fn time_in_the_queue_does_not_make_a_call_slow() {
    let (capture, _guard) = Capture::at(LevelFilter::INFO);
    let quota = Quota::per_second(2).unwrap().with_burst(1).unwrap().without_margin();
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(LocalLimiter::token_bucket(quota)))
        .layer(AuthLayer::from_sign(SlowSigner(60), Origin::parse(URI).unwrap()).unwrap())
        .service(ScriptedService::new([Status(200)]));
    for _ in 0..2 {
        service.clone().oneshot(get(URI)).await.unwrap();
    }
    let event = capture.of(CALL).pop().unwrap();
    assert!(number(&event, "queued_ms") > 400.0 && !event.fields.contains_key("key_ms"), "{event:?}");
}
