//! Tests the header that contains the number of the attempt.

use super::*;

/// Returns the attempt number of each request. Asserts that no request has more than one number.
fn attempt_numbers(server: &ScriptedService) -> Vec<Option<String>> {
    let number = |head: &http::request::Parts| {
        let mut numbers = head.headers.get_all("x-attempt").iter();
        let number = numbers.next().map(|number| number.to_str().unwrap().to_owned());
        assert!(numbers.next().is_none(), "the request has at most one attempt number");
        number
    };
    server.seen().iter().map(|seen| number(&seen.head)).collect()
}

#[tokio::test(start_paused = true)]
async fn attempt_number_is_sent_only_if_a_header_is_configured() {
    let numbered = AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt"));
    let preset = preset::realtime_messaging(URI).unwrap().with_api_key(ApiKey::new("k3y").unwrap());
    for (attempt, expected) in
        [(numbered, [Some("1"), Some("2"), Some("3")]), (AttemptSpanLayer::new(), [None; 3])]
    {
        let server = ScriptedService::new([Status(503), Io(ConnectionReset), Status(200)]);
        let preset = preset.clone().with_attempt_span(attempt);
        preset.layer().unwrap().layer(server.clone()).oneshot(get(URI)).await.unwrap();
        assert_eq!(attempt_numbers(&server), expected.map(|number| number.map(str::to_owned)));
        let attempt_headers = if expected[0].is_some() { 1 } else { 0 };
        for seen in server.seen() {
            // The other three headers are the request id, the content type and the key.
            assert_eq!(seen.head.headers.len(), 3 + attempt_headers, "{:?}", seen.head.headers);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_are_numbered_even_without_the_retry_layer() {
    let (capture, _guard) = Capture::all();
    let numbered = || AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt"));
    let server = ScriptedService::new([Status(200)]);
    let mut request = get(URI);
    request.headers_mut().insert("x-attempt", HeaderValue::from_static("7"));
    numbered().layer(server.clone()).oneshot(request).await.unwrap();
    assert_eq!(attempt_numbers(&server), [Some("1".to_owned())], "the layer replaces the caller's header");

    // A custom retry service is between the request id layer and the attempt span layer.
    let server = ScriptedService::new([Status(503), Status(503), Status(200)]);
    let retry = tower::service_fn({
        let inner = numbered().layer(server.clone());
        move |request: Request<Content>| {
            let inner = inner.clone();
            async move {
                loop {
                    let response = inner.clone().oneshot(request.clone()).await?;
                    if response.status() == StatusCode::OK {
                        return Ok::<_, tower_outbound::Error>(response);
                    }
                }
            }
        }
    });
    RequestIdLayer::new().layer(retry).oneshot(get(URI)).await.unwrap();
    assert_eq!(attempt_numbers(&server), ["1", "2", "3"].map(|number| Some(number.to_owned())));
    let resent: Vec<_> = capture.spans("attempt")[1..]
        .iter()
        .map(|span| span.fields.get("http.request.resend_count").cloned())
        .collect();
    assert_eq!(resent, [None, Some("1".to_owned()), Some("2".to_owned())]);
}

/// The first attempt fails in `poll_ready`, so nothing is sent. The first attempt has a number, but the second attempt
/// is no resend.
#[tokio::test(start_paused = true)]
async fn resend_count_is_absent_if_the_first_attempt_was_not_sent() {
    /// A service whose first `poll_ready`, counted over all clones, returns an error.
    #[derive(Clone, Default)]
    struct FailsFirstReady(Arc<AtomicBool>);

    impl<B> Service<Request<B>> for FailsFirstReady {
        type Response = Response<Content>;
        type Error = BoxError;
        type Future = Ready<Result<Response<Content>, BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(if self.0.swap(true, Relaxed) { Ok(()) } else { Err("broken".into()) })
        }

        fn call(&mut self, request: Request<B>) -> Self::Future {
            assert_eq!(request.headers()["x-attempt"], "2");
            ready(Ok(Response::new(Content::default())))
        }
    }

    let (capture, _guard) = Capture::all();
    let numbered = AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt"));
    (RetryLayer::new(), numbered).layer(FailsFirstReady::default()).oneshot(get(URI)).await.unwrap();
    let spans = capture.spans("attempt");
    assert_eq!(spans.len(), 1);
    assert!(!spans[0].fields.contains_key("http.request.resend_count"));
}

/// A resend with a new key has a number, a span and an event, like a retry.
#[tokio::test(start_paused = true)]
async fn resend_with_a_new_key_is_numbered_and_logged() {
    let (capture, _guard) = Capture::all();
    let server = ScriptedService::new([Status(401), Status(200)]);
    let fetches = AtomicU32::new(0);
    let preset = preset::realtime_messaging(URI).unwrap().with_keys(RefreshingKey::new(move || {
        let key = ApiKey::new(format!("k3y-{}", fetches.fetch_add(1, Relaxed)));
        async { Ok::<_, BoxError>(FreshKey::new(key?)) }
    }));
    let numbered = AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt"));
    let layer = preset.with_attempt_span(numbered).layer().unwrap();
    layer.layer(server.clone()).oneshot(request("POST", URI)).await.unwrap();
    assert_eq!(attempt_numbers(&server), ["1", "2"].map(|number| Some(number.to_owned())));
    let keys: Vec<_> = server.seen().iter().map(|seen| seen.head.headers["authorization"].clone()).collect();
    assert_eq!(keys, ["Bearer k3y-0", "Bearer k3y-1"]);
    let resent: Vec<_> = capture
        .spans("attempt")
        .iter()
        .map(|span| span.fields.get("http.request.resend_count").cloned())
        .collect();
    assert_eq!(resent, [None, Some("1".to_owned())]);
    let retries: Vec<_> =
        capture.lines().into_iter().filter(|event| event.target.ends_with("retry")).collect();
    assert_eq!(retries.len(), 1);
    assert_eq!(
        (retries[0].fields["reason"].as_str(), retries[0].fields["delay_ms"].as_str()),
        ("key_replaced", "0.0")
    );
}
