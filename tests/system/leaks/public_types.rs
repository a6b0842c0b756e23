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
    timeout::{AttemptTimeoutLayer, BodyIdleTimeoutLayer, TotalTimeoutLayer},
    transport::Transport,
};

#[cfg(any(feature = "oauth2", feature = "otel", feature = "redis", feature = "reqwest"))]
use tower_outbound::adapter;

use super::{
    coverage::{URI, check_debug_and_display, check_layer},
    *,
};
use crate::support::{Scripted, ScriptedService, get, secs};

#[test]
fn no_public_type_shows_the_key() {
    run_paused(async {
        auth().await;
        layers();
        calls_and_errors().await;
        bodies();
        retry_settings();
        test_kit().await;
        adapters();
        config();
    });
    #[cfg(feature = "reqwest")]
    run_with_sockets(reqwest_service());
}

async fn auth() {
    let origin = || Origin::parse(URI).unwrap();
    check_debug(&key());
    check_debug(&AppCredentials::new("app", key(), key()).unwrap());
    check_debug(&FreshKey::new(key()));
    check_debug(&refreshing_key());
    check_debug_and_display(&origin());
    let pool = Pool::new([(URI, key(), LocalLimiter::without_quota())]).unwrap();
    check_debug(&pool);
    let stack = tower_outbound::stack::StackBuilder::new(URI).unwrap().with_pool(pool).layer().unwrap();
    check_layer(stack.route.clone());
    check_layer(stack.default_headers.clone());
    check_layer(stack);

    let failing = KeySource::from(RefreshingKey::new(|| async {
        Err::<FreshKey, _>(ApiKey::new(format!("{KEY} ")).unwrap_err())
    }));
    check_error_chain(&failing.current().await.unwrap_err());
    for placement in ["bearer", "header:x-api-key", "basic:ann", "query:api_key"] {
        let placement: KeyPlacement = placement.parse().unwrap();
        check_debug_and_display(&placement);
        for keys in [KeySource::from(key()), refreshing_key().into(), failing.clone()] {
            check_debug(&keys);
            if let Ok(current) = keys.current().await {
                check_debug(&current);
            }
            let layer = AuthLayer::new(keys, origin()).unwrap().with_placement(placement.clone());
            check_layer(layer.clone());
            // This layer finds the key that its clone has already fetched.
            check_layer(layer);
        }
    }
    let captured = key();
    let sign = move |head: &mut http::request::Parts| {
        head.headers.insert("x-key", captured.header_value());
        Ok(())
    };
    check_layer(AuthLayer::from_fn(sign, origin()).unwrap());

    /// A signer whose future borrows the key.
    struct Signer(ApiKey);
    impl Sign for Signer {
        fn sign<'a>(&'a self, head: &'a mut http::request::Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
            Box::pin(async move {
                // Not marked as sensitive, so that `Debug` of the inner future would show it.
                let plain = HeaderValue::from_bytes(self.0.header_value().as_bytes())?;
                head.headers.insert("x-signed", plain);
                Ok(())
            })
        }
    }
    check_layer(AuthLayer::from_sign(Signer(key()), origin()).unwrap());
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

fn layers() {
    let quota = Quota::per_minute(1_000).unwrap();
    let bucket = LocalLimiter::token_bucket(quota);
    check_debug(&bucket);
    check_debug(&bucket.snapshot());
    check_debug(&LocalLimiter::sliding_window(quota));
    let learned = learned();
    check_debug(&learned);
    check_debug(&learned.source);
    check_debug(&bucket.acquire_with(&PermitRequest::new()));
    check_debug(&bucket.try_acquire().unwrap());
    let any = AnyLimiter::new(bucket.clone());
    check_debug(&any);
    check_layer(RateLimitLayer::new(any));
    #[cfg(feature = "client")]
    check_debug_and_display(&tower_outbound::client::PathSegment("segment"));
    // The keys of the keyed limiter are the values of the `authorization` header, which contain the credential.
    let keyed = || {
        Keyed::new(
            |head| head.headers[AUTHORIZATION].to_str().unwrap().to_owned(),
            move |_: &String| LocalLimiter::token_bucket(quota),
        )
    };
    check_debug(&keyed());
    check_debug(&AnyLimiter::new(keyed()));
    check_layer(RateLimitLayer::new(keyed()));
    check_debug(&Joint::new(bucket.clone(), keyed()));
    check_layer(RateLimitLayer::new(bucket));
    let headers = HeaderMap::from_iter([
        (HeaderName::from_static("x-ratelimit-remaining"), HeaderValue::from_static("0")),
        (HeaderName::from_static("x-ratelimit-reset"), HeaderValue::from_static("30")),
        (HeaderName::from_static("x-ratelimit-bucket"), key().header_value()),
    ]);
    let response = ResponseInfo::new(StatusCode::OK, &headers);
    check_debug(&response);
    check_debug(&LocalLimiter::without_quota().try_acquire().unwrap().complete_head(&response));
    check_debug(&response.remaining()[0]);
    check_debug(&response.remaining()[0].name());
    let quota = QuotaHeaders::new(HeaderName::from_static("x-left"));
    check_debug(&quota);
    let signal = |_: StatusCode, _: &HeaderMap| Some(ServerSignal::accepted());
    check_debug(&Dialect::new().with_signal(signal));
    let mut request = get(URI);
    request.headers_mut().insert(AUTHORIZATION, key().header_value());
    check_debug(&RequestHead::of(&request));

    check_layer(RequestIdLayer::new());
    check_debug(&RequestId(HeaderValue::from_static("mine")));
    check_layer(retry::RetryLayer::new());
    check_layer(AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt")));
    check_layer(TotalTimeoutLayer::new(secs(60)).unwrap());
    check_layer(AttemptTimeoutLayer::new(secs(60)).unwrap());
    check_layer(BodyIdleTimeoutLayer::new(secs(60)).unwrap());

    for placement in PLACEMENTS {
        check_layer(stack_builder(URI, placement).layer().unwrap());
        check_debug(&stack_builder(CLIENT_URL, placement).client().unwrap());
    }
    let credentials = AppCredentials::new("app", key(), key()).unwrap();
    let builder = stack_builder(URI, Placement::Bearer).with_authorize(move |head| {
        head.headers.insert("x-key", credentials.key().header_value());
        Ok(())
    });
    check_debug(&builder);
    check_layer(builder.layer().unwrap());
    let config = TransportConfig::new();
    #[cfg(feature = "proxy")]
    let config = {
        let password: String = KEY.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let proxy = format!("http://ann:{password}@proxy.example.com");
        let proxy = tower_outbound::transport::Proxy::new(&proxy).unwrap();
        check_debug(&proxy);
        config.with_proxy(proxy)
    };
    check_debug(&config);
    let mut transport: Transport<Body> = config.build().unwrap();
    check_debug(&transport);
    check_debug(&transport.call(get(URI).map(|_| Body::empty())));
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
    check_debug(&builder);
    check_debug(&seen.lock().unwrap().take().unwrap());
}

async fn calls_and_errors() {
    let inner = ScriptedService::new([Scripted::Status(503), Scripted::Status(401)]);
    let service = stack_builder(URI, Placement::Bearer).layer().unwrap().layer(inner.clone());
    let response = service.oneshot(get(URI)).await.unwrap();
    let report = Report::from_response(&response).unwrap();
    check_debug_and_display(report);
    let attempts = report.attempts();
    check_debug(&attempts[0]);
    check_debug(&attempts[0].outcome.unwrap());
    check_debug(inner.seen()[0].head.extensions.get::<CallContext>().unwrap());
    check_debug(response.body());

    let error = stack_builder(CLIENT_URL, Placement::Bearer).client().unwrap().get("//").await.unwrap_err();
    check_error_chain(&error);
    check_debug_and_display(&error.kind());
    check_debug_and_display(&tower_outbound::client::ResponseError::from(error));
    let client = stack_builder(CLIENT_URL, Placement::Bearer).client_with_service(inner.clone()).unwrap();
    let builder = client.get("/v1").query(&[("token", KEY)]).header("authorization", KEY).body(KEY);
    check_debug(&builder);
    let future = builder.send();
    check_debug(&future);
    check_debug(&future.await.unwrap());
    check_error_chain(&client.get("/v1").header("x-token", format!("{KEY}\n")).await.unwrap_err());
    #[cfg(feature = "json")]
    check_error_chain(&client.get("//").fetch_json::<()>().await.unwrap_err());
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
    check_error_chain(&ApiKey::new(format!("{KEY}\n")).unwrap_err());
    check_error_chain(&Refusal::new(Reason::Deadline, secs(1)));
    check_error_chain(&DeliveryError::not_sent("no free connection"));
}

fn bodies() {
    check_debug(&Body::from(KEY));
    let mut body = ReplayBody::new(Full::<Bytes>::from(KEY));
    check_debug(&body);
    let mut frame = task::spawn(body.frame());
    assert!(frame.poll().is_ready());
    drop(frame);
    check_debug(&body);
    assert!(body.is_end_stream());
    let mut collect = task::spawn(Body::from(KEY).bytes_up_to(1));
    let Poll::Ready(Err(error)) = collect.poll() else { panic!("expected an error") };
    check_error_chain(error.downcast_ref::<BodyTooLarge>().unwrap());
    let limited = RateLimitLayer::new(LocalLimiter::without_quota());
    let echo = tower::service_fn(|_: http::Request<()>| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(KEY)))
    });
    let mut response = task::spawn(limited.layer(echo).oneshot(http::Request::new(())));
    let Poll::Ready(Ok(response)) = response.poll() else { panic!("expected a response") };
    check_debug(response.body());
}

fn retry_settings() {
    let layer = RetryLayer::new();
    let state = layer.after_error(&get(URI), KEY);
    check_debug(&state);
    check_debug(&layer.decide(&state));
    // The closure captures the key.
    let captured = key();
    let has_key =
        move |head: RequestHead<'_>| head.headers.get(AUTHORIZATION) == Some(&captured.header_value());
    check_debug(&RetryLayer::new().never_on([StatusCode::CONFLICT]).retry_if(move |head, _| has_key(head)));
}

/// The scripted service and server receive the key in headers that are not marked as sensitive, and in the query.
async fn test_kit() {
    let plain = HeaderValue::from_bytes(key().header_value().as_bytes()).unwrap();
    let response = test_util::ScriptedResponse::status(200).with_header("x-echo", KEY).with_body(KEY);
    check_debug(&response);
    let service = ScriptedService::new([response]);
    check_debug(&service);
    for placement in PLACEMENTS {
        let stack = stack_builder(URI, placement).layer().unwrap().layer(service.clone());
        let mut request = get(URI);
        request.headers_mut().insert("x-plain", plain.clone());
        stack.oneshot(request).await.unwrap();
        check_debug(service.seen().last().unwrap());
    }
    check_debug(&service);
    let arrivals = service.arrivals();
    check_debug(&arrivals);
    check_debug(&test_util::Arrival::from(arrivals.times()[0]));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = std::thread::spawn(move || runtime.block_on(test_util::ScriptedServer::start(service)));
    check_debug(&server.join().unwrap().unwrap());
}

fn adapters() {
    #[cfg(feature = "oauth2")]
    {
        let credentials = adapter::ClientCredentials::new(URI, "app", key()).unwrap();
        let credentials = credentials.with_parameter("resource", KEY).unwrap();
        check_debug(&credentials);
        check_debug(&credentials.with_credentials_in_body().into_key_source().unwrap());
        for url in [format!("https://me:{KEY}@host/"), format!("{URI}?{KEY}#")] {
            check_error_chain(&adapter::ClientCredentials::new(url, "app", key()).unwrap_err());
        }
    }
    #[cfg(feature = "otel")]
    {
        check_layer(AttemptSpanLayer::new().with_propagation(adapter::trace_context));
    }
    #[cfg(feature = "redis")]
    {
        let quota = [Quota::per_second(10).unwrap()];
        let url = format!(
            "redis://me:{}@localhost",
            percent_encoding::utf8_percent_encode(KEY, percent_encoding::NON_ALPHANUMERIC)
        );
        let limiter = adapter::RedisLimiter::token_bucket(&url, KEY, quota).unwrap();
        check_debug(&limiter.store());
        check_debug(&limiter);
        let wrong = url.replace("redis://", "http://");
        check_error_chain(&adapter::RedisLimiter::token_bucket(&wrong, KEY, quota).unwrap_err());
    }
}

#[cfg(feature = "reqwest")]
async fn reqwest_service() {
    let service = adapter::Reqwest::new(reqwest::Client::builder()).unwrap();
    check_debug(&service);
    let server = server_with_statuses(Wire::Http1, [200, 401]).await;
    for placement in PLACEMENTS {
        let stack = stack_builder(&server.url(), placement).layer().unwrap().layer(service.clone());
        check_debug(&stack);
        let request = || get(&format!("{}/v1/resources", server.url()));
        let response = stack.clone().oneshot(request()).await.unwrap();
        check_response(&response, response.extensions());
    }
    // This request bypasses the layers. Its query contains the key, as in a request that the layers send.
    let encoded = percent_encoding::utf8_percent_encode(KEY, percent_encoding::NON_ALPHANUMERIC);
    let uri = format!("{}/?api_key={encoded}", server.url());
    let call = tower::Service::call(&mut service.clone(), get(&uri));
    check_debug(call.await.unwrap().body());
    let unreachable = uri.replace(&server.url(), "http://127.0.0.1:1");
    check_error_chain(&service.oneshot(get(&unreachable)).await.unwrap_err());
}

fn config() {
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
        check_debug(&service);
        check_display(&serde_json::to_string(&service).unwrap());
        check_debug(&StackBuilder::from_config(&service).unwrap());
        check_layer(service.layer().unwrap());

        // The caller passes the key as the value of another setting, or passes an invalid key.
        for (field, value) in [
            ("key_placement", format!("basic:ann:{KEY}")),
            ("key_placement", KEY.to_owned()),
            ("base_url", format!("https://me:{KEY}@host/")),
        ] {
            let read = file(field, value.into()).unwrap();
            check_debug(&read);
            check_display(&serde_json::to_string(&read).unwrap());
            check_error_chain(&read.layer().unwrap_err());
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
