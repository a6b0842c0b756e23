//! Tests the request builder: what each setter sends, and that a request with an invalid value is not sent.

use futures_util::StreamExt;
use proptest::prelude::*;
use tower_outbound::{Body, body::ReplayBody, limit::Priority, stack::TransportService};

use super::*;

/// Returns a client and its scripted service, which responds to every request with 200.
fn scripted() -> (Client, ScriptedService) {
    let service = ScriptedService::new([ScriptedResponse::status(200).with_body("hello")]);
    (preset("http://127.0.0.1:9/api").client_with_service(service.clone()).unwrap(), service)
}

#[tokio::test]
async fn each_method_of_the_client_sends_its_http_method() {
    let (client, service) = scripted();
    for request in [
        client.get("/v1"),
        client.head("/v1"),
        client.post("/v1"),
        client.put("/v1"),
        client.patch("/v1"),
        client.delete(String::from("/v1")),
        client.request(http::Method::OPTIONS, "/v1"),
    ] {
        assert_eq!(request.await.unwrap().status(), StatusCode::OK);
    }
    let methods: Vec<_> = service.seen().iter().map(|seen| seen.head.method.to_string()).collect();
    assert_eq!(methods, ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]);
}

#[tokio::test]
async fn client_percent_encodes_the_query_and_appends_it_to_the_url() {
    let (client, service) = scripted();
    client.get("/search").query(&[("q", "a b&c=ü/?#")]).query(&[("page", 2)]).await.unwrap();
    client.get("/items?kind=new").query::<&str, &str>(&[]).query(&[("limit", 10)]).await.unwrap();
    client.get("http://127.0.0.1:9/api/next?page=3").query(&[("limit", 10)]).await.unwrap();
    client.get("").query(&[("~._-", "~._-")]).await.unwrap();
    let uris: Vec<_> = service.seen().iter().map(|seen| seen.head.uri.to_string()).collect();
    let expected = [
        "/search?q=a%20b%26c%3D%C3%BC%2F%3F%23&page=2",
        "/items?kind=new&limit=10",
        "/next?page=3&limit=10",
        "?~._-=~._-",
    ];
    assert_eq!(uris, expected.map(|path| format!("http://127.0.0.1:9/api{path}")));
}

#[tokio::test]
async fn client_sends_the_headers_and_body_and_extensions_of_the_request() {
    #[derive(Debug, Clone, PartialEq)]
    struct Mark(u8);

    let (client, service) = scripted();
    let request = client.post("/v1").header("x-a", "1").header("x-a", String::from("2"));
    request.header(http::header::CONTENT_TYPE, "text/plain").body("letter").extension(Mark(7)).await.unwrap();
    let seen = &service.seen()[0];
    assert_eq!(seen.head.headers.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(seen.header("content-type"), Some("text/plain"));
    assert_eq!(seen.body.as_deref(), Some(&b"letter"[..]));
    assert_eq!(seen.head.extensions.get(), Some(&Mark(7)));
}

/// A value whose `Display` fails, like a date with an invalid pattern.
struct Unformattable;

impl std::fmt::Display for Unformattable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Err(std::fmt::Error)
    }
}

#[tokio::test]
async fn request_with_an_invalid_setter_value_returns_an_error_and_is_not_sent() {
    let (client, service) = scripted();
    for (request, shown) in [
        (client.get("/../admin").header("x", "1"), "a dot segment would leave the base url"),
        (client.get("/v1").header("x y", "s3cret"), "invalid header name `x…`"),
        (client.get("/v1").header("x-token", "s3cret\n"), "invalid header `x-token`: expected a value"),
        (client.get("/v1").cost(0).cost(1), "cost `0`: expected at least 1"),
        (client.get("/v1").attempt_timeout(Duration::ZERO), "attempt timeout `0ns`: expected more than zero"),
        (client.get("/v1").query(&[("page", Unformattable)]), "query parameter `page`"),
    ] {
        let error = request.await.unwrap_err();
        assert!(error.is_invalid_request() && error.report().is_none(), "{error:?}");
        let shown_error = format!("{error:#} {error:?}");
        assert!(shown_error.contains(shown) && !shown_error.contains("s3cret"), "{shown_error}");
    }
    let many = (0..6_600).fold(client.get("/v1"), |get, number| get.header(format!("x-{number}"), "1"));
    assert!(many.await.unwrap_err().is_invalid_request());
    assert_eq!(service.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn timeout_starts_when_the_request_is_awaited() {
    let service = ScriptedService::new([ScriptedResponse::never()]);
    let client = preset("http://127.0.0.1:9").client_with_service(service).unwrap();
    let request = client.get("/v1").timeout(Duration::from_secs(5));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let start = Instant::now();
    assert!(request.await.unwrap_err().is_timeout());
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn attempt_timeout_of_a_request_applies_to_its_attempts_and_not_to_other_requests() {
    let service = ScriptedService::new([ScriptedResponse::never()]);
    let client = preset("http://127.0.0.1:9").with_attempt_timeout(Duration::from_secs(2));
    let client = client.client_with_service(service).unwrap();
    for (own, expected) in [(Some(9), [9; 3]), (None, [2; 3]), (Some(1), [1; 3])] {
        let get = client.get("/v1");
        let get = match own {
            Some(limit) => get.attempt_timeout(Duration::from_secs(limit)),
            None => get,
        };
        let error = get.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AttemptTimeout);
        let attempts = error.report().unwrap().attempts();
        let took = attempts.iter().map(|attempt| (attempt.ended.unwrap() - attempt.started).as_secs());
        assert_eq!(took.collect::<Vec<_>>(), expected, "{own:?}");
    }
}

/// The spawned task does not wake the task of the call when the request gets its connection.
#[tokio::test(start_paused = true)]
async fn attempt_timeout_applies_although_a_spawned_task_sends_the_request() {
    let second = Duration::from_secs(1);
    for spawns in [false, true] {
        let connector = service_fn(move |_: http::Uri| async move {
            let (client, server) = tokio::io::duplex(1 << 10);
            let respond = hyper::service::service_fn(move |request: Request<_>| async move {
                tokio::time::sleep(if request.uri() == "/slow" { second * 5 / 2 } else { second * 60 }).await;
                Ok::<_, Infallible>(reply(200, "slow"))
            });
            let server = hyper_util::rt::TokioIo::new(server);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(server, respond));
            Ok::<_, BoxError>(client)
        });
        let layer = layer_fn(move |inner: TransportService| {
            service_fn(move |request: Request<ReplayBody<Body>>| {
                let call = inner.clone().oneshot(request);
                async move { if spawns { tokio::spawn(call).await? } else { call.await } }
            })
        });
        let transport = TransportConfig::new().with_max_connections(1);
        let client = preset("http://api.example.com")
            .with_plaintext()
            .with_total_timeout(second * 8)
            .with_attempt_timeout(second)
            .with_max_attempts(1)
            .with_transport_layer(layer)
            .client_with_service(transport.build_with_connector(connector).unwrap())
            .unwrap();
        let first = tokio::spawn(client.get("/slow").attempt_timeout(second * 5).fetch_text());
        settle().await;
        let start = Instant::now();
        let error = client.get("/").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AttemptTimeout, "{error:?}");
        assert_eq!(start.elapsed(), second * 7 / 2, "spawns: {spawns}");
        assert_eq!(first.await.unwrap().unwrap(), "slow");
    }
}

#[tokio::test(start_paused = true)]
async fn post_is_retried_if_it_is_declared_idempotent() {
    for (idempotent, calls) in [(false, 1), (true, 2)] {
        let service = ScriptedService::new([503, 200]);
        let client = preset("http://127.0.0.1:9").client_with_service(service.clone()).unwrap();
        let post = client.post("/search");
        let post = if idempotent { post.idempotent() } else { post };
        post.extension(RetryOverride::new().with_max_attempts(2).unwrap()).await.unwrap();
        assert_eq!(service.calls(), calls);
    }
}

#[tokio::test(start_paused = true)]
async fn request_takes_as_many_permits_as_its_cost() {
    let service = ScriptedService::new([200]);
    let quota = Quota::new(6, Duration::from_secs(60)).unwrap().with_burst(5).unwrap();
    let preset = preset("http://127.0.0.1:9").with_quota(quota);
    let client = preset.client_with_service(service).unwrap();
    client.get("/export").cost(4).await.unwrap();
    let limiter = client.limiter();
    let window: &LocalLimiter = limiter.downcast_ref().unwrap();
    assert_eq!(window.snapshot().available, 1);
}

#[tokio::test(start_paused = true)]
async fn request_priority_overrides_client_priority() {
    let quota = Quota::new(11, Duration::from_secs(10)).unwrap().with_burst(1).unwrap().without_margin();
    let limiter = LocalLimiter::token_bucket(quota).with_initial_burst(0);
    let preset =
        |priority| preset("http://127.0.0.1:9").with_limiter(limiter.clone()).with_priority(priority);
    let client = |priority| preset(priority).client_with_service(ScriptedService::new([200])).unwrap();
    let (jobs, users) = (client(Priority::Low), client(Priority::Normal));
    let start = Instant::now();
    let timed = |request: tower_outbound::client::RequestBuilder| async move {
        request.await.unwrap();
        start.elapsed().as_secs()
    };
    let waits = tokio::join!(
        timed(jobs.get("/export")),
        timed(users.get("/search")),
        timed(jobs.get("/alert").priority(Priority::High)),
    );
    assert_eq!(waits, (3, 2, 1));
}

#[tokio::test]
async fn text_method_replaces_body_bytes_that_are_not_utf_8() {
    let service = tower::service_fn(|_: Request<_>| {
        ready(Ok::<_, Infallible>(http::Response::new(http_body_util::Full::from(&b"a\xffb"[..]))))
    });
    let client = preset("http://127.0.0.1:9").client_with_service(service).unwrap();
    assert_eq!(client.get("/").await.unwrap().text().await.unwrap(), "a\u{fffd}b");
    assert_eq!(client.get("/").await.unwrap().bytes().await.unwrap(), &b"a\xffb"[..]);
}

#[tokio::test]
async fn error_for_status_keeps_status_and_request_id_and_excerpt() -> Result<(), BoxError> {
    let service = ScriptedService::new([ScriptedResponse::status(404).with_body("no such order")]);
    let client = preset("http://127.0.0.1:9").client_with_service(service)?;
    let error = client.get("/orders/7").await?.error_for_status().await.unwrap_err();
    assert_eq!((error.status(), error.excerpt()), (Some(StatusCode::NOT_FOUND), "no such order"));
    assert!(error.to_string().contains(error.request_id().unwrap().to_str()?), "{error}");
    Ok(())
}

/// The excerpt needs only the first of the frames.
#[tokio::test(start_paused = true)]
async fn error_for_status_drains_the_body_so_that_its_request_does_not_count_as_cancelled() {
    let service = service_fn(|_: Request<_>| {
        let frames = stream::iter([b'a', b'b', b'c']).then(async |byte| {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok::<_, Infallible>(Frame::data(Bytes::from(vec![byte; 2_048])))
        });
        let response = http::Response::builder().status(404).body(StreamBody::new(frames)).unwrap();
        ready(Ok::<_, Infallible>(response))
    });
    let hold = Duration::from_secs(60);
    let builder = preset("http://127.0.0.1:9").with_max_in_flight(1).with_hold_after_cancel(hold);
    let client = builder.client_with_service(service).unwrap();
    let limiter = client.limiter();
    let limiter: &LocalLimiter = limiter.downcast_ref().unwrap();
    let error = client.get("/").fetch_text().await.unwrap_err();
    assert_eq!(error.excerpt(), format!("{}...", "a".repeat(1024)));
    assert_eq!(limiter.snapshot().requests_in_flight, Some(0));

    let (dropped, start) = (client.get("/").await.unwrap(), Instant::now());
    drop(dropped);
    assert_eq!(limiter.snapshot().requests_in_flight, Some(1), "a dropped body counts for the hold");
    client.get("/").timeout(2 * hold).await.unwrap();
    assert_eq!(start.elapsed(), hold);
}

proptest! {
    #[test]
    fn decoded_query_contains_the_pairs_that_the_caller_set(pairs in prop::collection::vec((".{1,8}", ".{0,8}"), 0..4)) {
        let (client, service) = scripted();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { client.get("/v1").query(&pairs).await.unwrap() });
        let query = service.seen()[0].head.uri.query().unwrap_or_default().to_owned();
        let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8().unwrap().into_owned();
        let decoded: Vec<_> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (decode(name), decode(value)))
            .collect();
        prop_assert_eq!(decoded, pairs);
    }
}
