//! Tests that no public type shows the key in `Debug` or `Display`. The tested values contain the key. Each new public
//! type whose value may contain the key needs a check in this file.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::AUTHORIZATION};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use tokio_test::task;
use tower::{Layer, Service, ServiceExt};
use tower_outbound::{
    ApiKey, Body, Quota,
    attempt_span::AttemptSpanLayer,
    auth::*,
    body::{BodyTooLarge, ReplayBody},
    call::{CallContext, RequestHead},
    error::{DeliveryError, Reason, Refusal},
    limit::{
        AnyLimiter, Dialect, Joint, Keyed, Learned, Limiter, LocalLimiter, PermitRequest, QuotaHeaders,
        RateLimitLayer, ResponseInfo, ServerSignal,
    },
    request_id::{RequestId, RequestIdLayer},
    retry::{self, RetryLayer},
    stack::{Pool, TransportService},
    test_util,
    timeout::{BodyIdleTimeoutLayer, TimeoutLayer},
    transport::Transport,
};

#[cfg(any(feature = "oauth2", feature = "otel", feature = "redis", feature = "reqwest"))]
use tower_outbound::adapter;

use super::{
    coverage::{Coverage, URI},
    *,
};
use crate::support::{Scripted, ScriptedService, get, secs};

#[test]
fn no_public_type_shows_the_key() {
    let coverage = Coverage;
    run_paused(async {
        auth(&coverage).await;
        layers(&coverage);
        calls_and_errors(&coverage).await;
        bodies(&coverage);
        retry_settings(&coverage);
        test_kit(&coverage).await;
        adapters(&coverage);
        config(&coverage);
    });
    #[cfg(feature = "reqwest")]
    run_with_sockets(reqwest_service(&coverage));
}

async fn auth(coverage: &Coverage) {
    let origin = || Origin::parse(URI).unwrap();
    coverage.debug(&key());
    coverage.debug(&AppCredentials::new("app", key(), key()).unwrap());
    coverage.debug(&FreshKey::new(key()));
    coverage.debug(&refreshing_key());
    coverage.debug_and_display(&origin());
    let pool = Pool::new([(URI, key(), LocalLimiter::without_quota())]).unwrap();
    coverage.debug(&pool);
    coverage.layer(tower_outbound::stack::StackBuilder::new(URI).unwrap().with_pool(pool).layer().unwrap());

    let failing = KeySource::from(RefreshingKey::new(|| async {
        Err::<FreshKey, _>(ApiKey::new(format!("{KEY} ")).unwrap_err())
    }));
    coverage.error(&failing.current().await.unwrap_err());
    for placement in ["bearer", "header:x-api-key", "basic:ann", "query:api_key"] {
        let placement: KeyPlacement = placement.parse().unwrap();
        coverage.debug_and_display(&placement);
        for keys in [KeySource::from(key()), refreshing_key().into(), failing.clone()] {
            coverage.debug(&keys);
            if let Ok(current) = keys.current().await {
                coverage.debug(&current);
            }
            let layer = AuthLayer::new(keys, origin()).unwrap().with_placement(placement.clone());
            coverage.layer(layer.clone());
            // This layer finds the key that its clone has already fetched.
            coverage.layer(layer);
        }
    }
    let captured = key();
    let sign = move |head: &mut http::request::Parts| {
        head.headers.insert("x-key", captured.header_value());
        Ok(())
    };
    coverage.layer(AuthLayer::from_fn(sign, origin()).unwrap());

    /// A signer whose future borrows the key.
    struct Signer(ApiKey);
    impl Sign for Signer {
        fn sign<'a>(&'a self, head: &'a mut http::request::Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
            Box::pin(async move {
                head.headers.insert("x-signed", self.0.header_value());
                Ok(())
            })
        }
    }
    coverage.layer(SignLayer::new(Signer(key()), origin()).unwrap());
}

/// Returns what an adaptive limiter has learned from a response that echoes the key in a header.
fn learned() -> Learned {
    let limiter = LocalLimiter::adaptive([]);
    let mut headers = HeaderMap::new();
    headers.insert("x-key", key().header_value());
    headers.insert("ratelimit", HeaderValue::from_static("limit=100, remaining=99, reset=60"));
    limiter.try_acquire().unwrap().complete(&ResponseInfo::new(StatusCode::OK, &headers));
    limiter.snapshot().learned.unwrap()
}

fn layers(coverage: &Coverage) {
    let quota = Quota::per_minute(1_000).unwrap();
    let bucket = LocalLimiter::token_bucket(quota);
    coverage.debug(&bucket);
    coverage.debug(&bucket.snapshot());
    coverage.debug(&LocalLimiter::sliding_window(quota));
    let learned = learned();
    coverage.debug(&learned);
    coverage.debug(&learned.source);
    coverage.debug(&bucket.acquire_with(&PermitRequest::new()));
    coverage.debug(&bucket.try_acquire().unwrap());
    let any = AnyLimiter::new(bucket.clone());
    coverage.debug(&any);
    coverage.layer(RateLimitLayer::new(any));
    #[cfg(feature = "client")]
    coverage.debug_and_display(&tower_outbound::client::PathSegment("segment"));
    // The keys of the keyed limiter are the values of the `authorization` header, which contain the credential.
    let keyed = || {
        Keyed::new(
            |head| head.headers[AUTHORIZATION].to_str().unwrap().to_owned(),
            move |_: &String| LocalLimiter::token_bucket(quota),
        )
    };
    coverage.debug(&keyed());
    coverage.debug(&AnyLimiter::new(keyed()));
    coverage.layer(RateLimitLayer::new(keyed()));
    coverage.debug(&Joint::new(bucket.clone(), keyed()));
    coverage.layer(RateLimitLayer::new(bucket));
    let headers = HeaderMap::from_iter([
        (HeaderName::from_static("x-ratelimit-remaining"), HeaderValue::from_static("0")),
        (HeaderName::from_static("x-ratelimit-reset"), HeaderValue::from_static("30")),
        (HeaderName::from_static("x-ratelimit-bucket"), key().header_value()),
    ]);
    let response = ResponseInfo::new(StatusCode::OK, &headers);
    coverage.debug(&response);
    coverage.debug(&LocalLimiter::without_quota().try_acquire().unwrap().complete_head(&response));
    coverage.debug(&response.remaining()[0]);
    coverage.debug(&response.remaining()[0].name());
    let quota = QuotaHeaders::new(HeaderName::from_static("x-left"));
    coverage.debug(&quota);
    let signal = |_: StatusCode, _: &HeaderMap| Some(ServerSignal::accepted());
    coverage.debug(&Dialect::new().with_signal(signal));
    let mut request = get(URI);
    request.headers_mut().insert(AUTHORIZATION, key().header_value());
    coverage.debug(&RequestHead::of(&request));

    coverage.layer(RequestIdLayer::new());
    coverage.debug(&RequestId(HeaderValue::from_static("mine")));
    coverage.layer(retry::RetryLayer::new());
    coverage.layer(AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt")));
    coverage.layer(TimeoutLayer::total(secs(60)).unwrap());
    coverage.layer(TimeoutLayer::per_attempt(secs(60)).unwrap());
    coverage.layer(BodyIdleTimeoutLayer::new(secs(60)).unwrap());

    for placement in PLACEMENTS {
        let builder = stack_builder(URI, placement);
        coverage.debug(&builder);
        let layer = builder.layer().unwrap();
        coverage.debug(&layer);
        coverage.layer(layer);
        let client = stack_builder(CLIENT_URL, placement).client().unwrap();
        coverage.debug(&client);
    }
    let credentials = AppCredentials::new("app", key(), key()).unwrap();
    let builder = stack_builder(URI, Placement::Bearer).with_authorize(move |head| {
        head.headers.insert("x-key", credentials.key().header_value());
        Ok(())
    });
    coverage.debug(&builder);
    coverage.layer(builder.layer().unwrap());
    let config = TransportConfig::new();
    #[cfg(feature = "proxy")]
    let config = {
        let password: String = KEY.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let proxy = format!("http://ann:{password}@proxy.example.com");
        let proxy = tower_outbound::transport::Proxy::new(&proxy).unwrap();
        coverage.debug(&proxy);
        config.with_proxy(proxy)
    };
    coverage.debug(&config);
    let mut transport: Transport<Body> = config.build().unwrap();
    coverage.debug(&transport);
    coverage.debug(&transport.call(get(URI).map(|_| Body::empty())));
    let seen = Arc::new(Mutex::new(None));
    let layer = {
        let seen = Arc::clone(&seen);
        tower::layer::layer_fn(move |inner: TransportService| {
            *seen.lock().unwrap() = Some(inner.clone());
            inner
        })
    };
    let builder = stack_builder(CLIENT_URL, Placement::Bearer).with_transport_layer(layer);
    builder.client().unwrap();
    coverage.debug(&builder);
    coverage.debug(&seen.lock().unwrap().take().unwrap());
}

async fn calls_and_errors(coverage: &Coverage) {
    let inner = ScriptedService::new([Scripted::Status(503), Scripted::Status(401)]);
    let service = stack_builder(URI, Placement::Bearer).layer().unwrap().layer(inner.clone());
    let response = service.oneshot(get(URI)).await.unwrap();
    let report = Report::from_response(&response).unwrap();
    coverage.debug_and_display(report);
    let attempts = report.attempts();
    coverage.debug(&attempts[0]);
    coverage.debug(&attempts[0].outcome.unwrap());
    coverage.debug(inner.seen()[0].head.extensions.get::<CallContext>().unwrap());
    coverage.debug(response.body());

    let error = stack_builder(CLIENT_URL, Placement::Bearer).client().unwrap().get("//").await.unwrap_err();
    coverage.error(&error);
    coverage.debug_and_display(&error.kind());
    coverage.debug_and_display(&tower_outbound::client::ResponseError::from(error));
    let client = stack_builder(CLIENT_URL, Placement::Bearer).client_with_service(inner.clone()).unwrap();
    let builder = client.get("/v1").query(&[("token", KEY)]).header("authorization", KEY).body(KEY);
    coverage.debug(&builder);
    let future = builder.send();
    coverage.debug(&future);
    coverage.debug(&future.await.unwrap());
    coverage.error(&client.get("/v1").header("x-token", format!("{KEY}\n")).await.unwrap_err());
    #[cfg(feature = "json")]
    coverage.error(
        &stack_builder(CLIENT_URL, Placement::Bearer)
            .client()
            .unwrap()
            .get("//")
            .fetch_json::<()>()
            .await
            .unwrap_err(),
    );
    // Only the `retry_if` closure gets a value of the type `AttemptResult`. The headers of the response contain the
    // key.
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let layer = RetryLayer::new().retry_if(move |_, attempt| {
        check_debug(attempt);
        counter.fetch_add(1, Relaxed);
        false
    });
    let inner = ScriptedService::new([
        Scripted::Headers(503, &[("authorization", KEY)]),
        Scripted::Refused,
        Scripted::Status(200),
    ]);
    layer.layer(inner).oneshot(get(URI)).await.unwrap();
    assert_eq!(count.load(Relaxed), 3);
    coverage.error(&ApiKey::new(format!("{KEY}\n")).unwrap_err());
    coverage.error(&Refusal::new(Reason::Deadline, secs(1)));
    coverage.error(&DeliveryError::not_sent("no free connection"));
}

fn bodies(coverage: &Coverage) {
    coverage.debug(&Body::from(KEY));
    let mut body = ReplayBody::new(Full::<Bytes>::from(KEY));
    coverage.debug(&body);
    let mut frame = task::spawn(body.frame());
    assert!(frame.poll().is_ready());
    drop(frame);
    coverage.debug(&body);
    assert!(body.is_end_stream());
    let mut collect = task::spawn(Body::from(KEY).bytes_up_to(1));
    let Poll::Ready(Err(error)) = collect.poll() else { panic!("expected an error") };
    coverage.error(error.downcast_ref::<BodyTooLarge>().unwrap());
    let limited = RateLimitLayer::new(LocalLimiter::without_quota());
    let echo = tower::service_fn(|_: http::Request<()>| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(KEY)))
    });
    let mut response = task::spawn(limited.layer(echo).oneshot(http::Request::new(())));
    let Poll::Ready(Ok(response)) = response.poll() else { panic!("expected a response") };
    coverage.debug(response.body());
}

fn retry_settings(coverage: &Coverage) {
    // The closure captures the key.
    let captured = key();
    let has_key =
        move |head: RequestHead<'_>| head.headers.get(AUTHORIZATION) == Some(&captured.header_value());
    coverage
        .debug(&RetryLayer::new().never_on([StatusCode::CONFLICT]).retry_if(move |head, _| has_key(head)));
}

/// The scripted service and server receive the key in headers that are not marked as sensitive, and in the query.
async fn test_kit(coverage: &Coverage) {
    let plain = HeaderValue::from_bytes(key().header_value().as_bytes()).unwrap();
    let response = test_util::ScriptedResponse::status(200).with_header("x-echo", KEY).with_body(KEY);
    coverage.debug(&response);
    let service = ScriptedService::new([response]);
    coverage.debug(&service);
    for placement in PLACEMENTS {
        let stack = stack_builder(URI, placement).layer().unwrap().layer(service.clone());
        let mut request = get(URI);
        request.headers_mut().insert("x-plain", plain.clone());
        stack.oneshot(request).await.unwrap();
        coverage.debug(service.seen().last().unwrap());
    }
    coverage.debug(&service);
    let arrivals = service.arrivals();
    coverage.debug(&arrivals);
    coverage.debug(&test_util::Arrival::from(arrivals.times()[0]));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = std::thread::spawn(move || runtime.block_on(test_util::ScriptedServer::start(service)));
    coverage.debug(&server.join().unwrap().unwrap());
}

fn adapters(coverage: &Coverage) {
    let _ = coverage;
    #[cfg(feature = "oauth2")]
    {
        let credentials = adapter::ClientCredentials::new(URI, "app", key()).unwrap();
        let credentials = credentials.with_parameter("resource", KEY).unwrap();
        coverage.debug(&credentials);
        check_debug(&credentials.with_credentials_in_body().into_key_source().unwrap());
        for url in [format!("https://me:{KEY}@host/"), format!("{URI}?{KEY}#")] {
            check_error_chain(&adapter::ClientCredentials::new(url, "app", key()).unwrap_err());
        }
    }
    #[cfg(feature = "otel")]
    {
        coverage.layer(AttemptSpanLayer::new().with_propagation(adapter::trace_context));
    }
    #[cfg(feature = "redis")]
    {
        let quota = [Quota::per_second(10).unwrap()];
        let url = format!(
            "redis://me:{}@localhost",
            percent_encoding::utf8_percent_encode(KEY, percent_encoding::NON_ALPHANUMERIC)
        );
        let limiter = adapter::RedisLimiter::token_bucket(&url, KEY, quota).unwrap();
        coverage.debug(&limiter.store());
        coverage.debug(&limiter);
        let wrong = url.replace("redis://", "http://");
        check_error_chain(&adapter::RedisLimiter::token_bucket(&wrong, KEY, quota).unwrap_err());
    }
}

#[cfg(feature = "reqwest")]
async fn reqwest_service(coverage: &Coverage) {
    let service = adapter::Reqwest::new(reqwest::Client::builder()).unwrap();
    coverage.debug(&service);
    let server = server_with_statuses(Wire::Http1, [200, 401]).await;
    for placement in PLACEMENTS {
        let stack = stack_builder(&server.url(), placement).layer().unwrap().layer(service.clone());
        check_debug(&stack);
        let request = || get(&format!("{}/v1/resources", server.url()));
        check_response(&stack.clone().oneshot(request()).await.unwrap());
    }
    // This request bypasses the layers. Its query contains the key, as in a request that the layers send.
    let encoded = percent_encoding::utf8_percent_encode(KEY, percent_encoding::NON_ALPHANUMERIC);
    let uri = format!("{}/?api_key={encoded}", server.url());
    let call = tower::Service::call(&mut service.clone(), get(&uri));
    coverage.debug(call.await.unwrap().body());
    let unreachable = uri.replace(&server.url(), "http://127.0.0.1:1");
    check_error_chain(&service.oneshot(get(&unreachable)).await.unwrap_err());
}

fn config(coverage: &Coverage) {
    coverage.debug_and_display(&"header:x-api-key".parse::<KeyPlacement>().unwrap());
    #[cfg(feature = "serde")]
    {
        use tower_outbound::{preset::StackConfig, stack::StackBuilder};

        let file = |field: &str, value: serde_json::Value| {
            let mut file =
                serde_json::json!({ "base_url": URI, "retry": { "honoured_idempotency_key": {} } });
            file[field] = value;
            serde_json::from_value::<StackConfig>(file)
        };
        let service = file("api_key", KEY.into()).unwrap();
        coverage.debug(&service);
        check_display(&serde_json::to_string(&service).unwrap());
        check_debug(&StackBuilder::from_config(&service).unwrap());
        coverage.layer(service.layer().unwrap());

        // The caller passes the key as the value of another setting, or passes an invalid key.
        for (field, value) in [
            ("key_placement", format!("basic:ann:{KEY}")),
            ("key_placement", KEY.to_owned()),
            ("base_url", format!("https://me:{KEY}@host/")),
        ] {
            let read = file(field, value.into()).unwrap();
            check_debug(&read);
            check_display(&serde_json::to_string(&read).unwrap());
            coverage.error(&read.layer().unwrap_err());
        }
        for bad in [format!("{KEY} "), format!("{KEY}\n"), format!("\u{fc}{KEY}")] {
            let read = file("api_key", bad.into()).unwrap();
            check_debug(&read);
            check_error_chain(&read.layer().unwrap_err());
        }
        for value in [serde_json::json!([KEY]), serde_json::json!({ KEY: 1 })] {
            let read = file("api_key", value).unwrap();
            check_debug(&read);
            check_error_chain(&read.layer().unwrap_err());
        }
    }
}
