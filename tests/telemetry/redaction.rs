//! Tests that log events and spans contain no secrets.

use super::*;

#[tokio::test(start_paused = true)]
async fn log_events_show_no_secret_from_uri_key_headers_or_body() {
    let (capture, _guard) = Capture::at(LevelFilter::TRACE);
    let uri = "https://me:s3cret-user@api.example.com/v1?token=s3cret-query";
    let scripts: [&[Scripted]; 5] = [
        &[Headers(200, &[("set-cookie", "s3cret-cookie")])],
        &[Headers(429, &[("retry-after", "1"), ("x-hint", "s3cret-hint")]), Status(404)],
        &[Refused],
        &[Io(ConnectionReset)],
        &[NoResponse],
    ];
    for in_query in [false, true] {
        for script in scripts {
            let mut preset =
                preset::currency_rates(URI).unwrap().with_api_key(ApiKey::new("s3cret-key").unwrap());
            if in_query {
                preset = preset.with_key_placement("query:api_key".parse().unwrap());
            }
            let service = preset.layer().unwrap().layer(ScriptedService::new(script.iter().copied()));
            let mut request = request("GET", uri);
            request.headers_mut().insert("x-private", HeaderValue::from_static("s3cret-header"));
            *request.body_mut() = Content::from("s3cret-body");
            let _ = service.oneshot(request).await;
        }
    }
    let text = capture.text();
    assert_eq!(capture.of(CALL).len(), 10);
    assert!(capture.of(ATTEMPT).len() > 10);
    assert!(!text.contains("s3cret") && !text.contains("token="), "{text}");
    let spans = capture.spans("call");
    assert!(spans.iter().all(|span| span.fields["url.full"] == "https://api.example.com/v1"));
    assert!(spans.iter().all(|span| span.fields["service"] == "currency_rates"));
}

#[tokio::test(start_paused = true)]
async fn no_secret_from_the_uri_or_the_key_appears_in_spans() {
    let (capture, _guard) = Capture::all();
    let preset = preset::currency_rates(URI).unwrap().with_api_key(ApiKey::new("s3cret").unwrap());
    for preset in [preset.clone(), preset.with_key_placement("query:s3cret-name".parse().unwrap())] {
        for script in
            [&[Status(200)][..], &[Status(401)], &[Status(503), Io(ConnectionReset), NoResponse], &[Refused]]
        {
            let service = preset.layer().unwrap().layer(ScriptedService::new(script.iter().copied()));
            let _ = service.oneshot(get("https://s3cret:s3cret@api.example.com/v1?a=s3cret")).await;
        }
    }
    assert_eq!(capture.spans("attempt").len(), 16);
    assert!(!capture.text().contains("s3cret"), "{}", capture.text());
}

#[tokio::test(start_paused = true)]
async fn log_error_and_snapshot_name_the_quota_of_the_server_unless_its_name_contains_the_key() {
    for (resource, shown) in [("search", "search"), ("s3cret-key", "redacted"), ("a/s3cret-key", "redacted")]
    {
        let (capture, _guard) = Capture::all();
        let preset = preset::currency_rates(URI).unwrap().with_api_key(ApiKey::new("s3cret-key").unwrap());
        let preset = preset
            .with_quota(Quota::per_minute(600).unwrap())
            .with_retry(RetryLayer::new().with_max_attempts(1).unwrap());
        let headers =
            [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "90"), ("x-ratelimit-resource", resource)];
        let script = headers
            .iter()
            .fold(ScriptedResponse::status(429), |response, (name, value)| response.with_header(name, value));
        let service =
            preset.layer().unwrap().layer(tower_outbound::test_util::ScriptedService::new([script]));
        let _ = service.clone().oneshot(request("GET", URI)).await;
        let error = service.oneshot(request("GET", URI)).await.unwrap_err();
        let text = format!("{error:?} {error}");
        assert!(text.contains(&format!("quota of the server: {shown}")), "{text}");
        let paused =
            capture.of(LIMIT).into_iter().find(|event| event.fields.contains_key("pause_ms")).unwrap();
        assert_eq!((paused.fields["quota"].as_str(), paused.fields["pause_ms"].as_str()), (shown, "90000.0"));
        let limiter: &LocalLimiter = preset.limiter().downcast_ref().unwrap();
        assert_eq!(limiter.snapshot().quota.unwrap().as_str(), shown);
        assert!(!format!("{limiter:?} {}", capture.text()).contains("s3cret"), "{}", capture.text());
    }
}
