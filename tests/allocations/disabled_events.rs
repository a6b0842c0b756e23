//! Tests that log events of a disabled level format nothing, and that a call allocates at most one box for its log
//! event. These tests run in a separate process, because `tracing` caches for the whole process which levels are
//! enabled.

use std::{
    convert::Infallible,
    future::ready,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use http::{HeaderValue, Request, Response, StatusCode, header::RETRY_AFTER};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    ApiKey, BoxError, Quota,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, FreshKey, Origin, RefreshingKey},
    limit::{LocalLimiter, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    stack::StackBuilder,
};
use tracing::{Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{Registry, filter::filter_fn, layer::SubscriberExt};

use crate::{Content, NoOp, URI, allocations, serial};

/// Returns how many boxes a call allocates only if the maximum level of the process allows the call's log event.
/// Usually returns 1, for a box with the parts of the request that the event shows. Returns 0 if another crate of the
/// build enables tracing's feature `log`. A call then allocates the box at every level, because the crate `log` may
/// write the event.
fn subject() -> u64 {
    let is_log_enabled =
        tracing::subscriber::with_default(all_disabled(), || !tracing::error_span!("disabled").is_none());
    u64::from(!is_log_enabled)
}

/// Returns a subscriber that disables every level. Without a subscriber, the maximum level of the previous subscriber
/// would still apply.
fn all_disabled() -> impl Subscriber + Send + Sync {
    Registry::default().with(LevelFilter::OFF)
}

/// Returns a subscriber that enables the level of every event and formats each event.
fn all_enabled() -> impl Subscriber + Send + Sync {
    tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_writer(std::io::sink).finish()
}

/// Returns the number of allocations of one call through a complete stack. The server returns `statuses` in order, and
/// adds `Retry-After` to a 429. The call causes log events of all layers, such as a wait for the limiter and a key
/// refresh.
fn measure_call(statuses: &'static [u16], (uri, id): (&str, &str)) -> u64 {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let _entered = runtime.enter();
    let keys = RefreshingKey::new(|| ready(ApiKey::new("k3y").map(FreshKey::new).map_err(BoxError::from)));
    let auth = AuthLayer::new(keys, Origin::parse(URI).unwrap()).unwrap();
    let responses = AtomicUsize::new(0);
    let server = |_: Request<_>| {
        let mut response = Response::new(Content::new());
        let status = &statuses[responses.fetch_add(1, Relaxed)];
        *response.status_mut() = StatusCode::from_u16(*status).unwrap();
        if *status == 429 {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        ready(Ok::<_, Infallible>(response))
    };
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates"))
        .layer(RetryLayer::new().with_seed(1))
        .layer(RateLimitLayer::new(LocalLimiter::token_bucket(
            Quota::per_second(2).unwrap().with_burst(1).unwrap().without_margin(),
        )))
        .layer(AttemptSpanLayer::new())
        .layer(auth)
        .service(service_fn(server));
    let request = Request::get(uri).header("x-request-id", id).body(Content::new()).unwrap();
    let mut status = None;
    let allocated = allocation_counter::measure(|| {
        status = runtime.block_on(service.oneshot(request)).ok().map(|response| response.status());
    });
    assert_eq!(status.unwrap().as_u16(), *statuses.last().unwrap());
    allocated.count_total
}

/// `most` is the measured number of allocations, and does not depend on features of this crate. A higher number means
/// that a disabled event formats text, or that the code or a dependency allocates more than before.
#[test]
fn disabled_spans_and_events_format_no_part_of_a_request_whatever_the_outcome() {
    let _serial = serial();
    let subject = subject();
    // Both requests have less than 1,024 bytes of header fields, so the retry layer records both heads in the same
    // form.
    let (id, long_id, long_uri) = ("x".repeat(200), "x".repeat(500), format!("{URI}/{}", "x".repeat(299)));
    for (statuses, most) in [
        (&[200][..], 22),
        (&[404], 22),
        (&[503, 503, 503], 69),
        (&[429, 200], 36),
        (&[401, 200], 59),
        (&[401, 401], 59),
    ] {
        let most = most + 1 - subject;
        let measure = || {
            let _initializes_lazily = measure_call(statuses, (URI, &id));
            (measure_call(statuses, (URI, &id)), measure_call(statuses, (&long_uri, &long_id)))
        };
        let (disabled, long) = tracing::subscriber::with_default(all_disabled(), measure);
        assert!(disabled <= most, "{disabled} allocations, expected at most {most}, with {statuses:?}");
        assert!(
            long <= most,
            "{long} allocations for a long URI, expected at most {most}, with {statuses:?}"
        );
        // `RequestIdLayer` checks only the level of its log event, not the target. Therefore it allocates the event's
        // box even if the target is disabled.
        let other_target = Registry::default().with(filter_fn(|metadata| metadata.target() == "other"));
        let (other, _) = tracing::subscriber::with_default(other_target, measure);
        let most = disabled + subject;
        assert!(other <= most, "{other} allocations if only another target is enabled, with {statuses:?}");
        let (enabled, _) = tracing::subscriber::with_default(all_enabled(), measure);
        assert!(enabled > disabled, "the measurement does not include enabled events, with {statuses:?}");
    }
}

/// A GET makes these nine allocations: the id, the call, the copy of the head, and three for each of the extensions of
/// the request and of the response (a map, the map's table, and a box for the value).
#[test]
fn complete_stack_makes_at_most_nine_allocations_for_a_get() {
    let _serial = serial();
    let stack = StackBuilder::new(URI).unwrap().with_api_key(ApiKey::new("k3y").unwrap());
    // The request has a header, because a header map without a field has no allocation.
    let with_header = |mut request: Request<Content>| {
        request.headers_mut().insert(http::header::ACCEPT, HeaderValue::from_static("application/json"));
        request
    };
    let service = tower::util::MapRequest::new(NoOp, with_header);
    let stack = tower::util::MapRequest::new(stack.layer().unwrap().layer(NoOp), with_header);
    let added =
        tracing::subscriber::with_default(all_disabled(), || allocations(stack) - allocations(service));
    let most = 10 - subject();
    assert!(added <= most, "{added} allocations, expected at most {most}");
}

/// A client keeps the request until the body of the response was read. The copy of its head is one allocation.
#[cfg(feature = "client")]
#[test]
fn client_makes_at_most_one_allocation_to_keep_a_get_until_its_body_was_read() {
    let _serial = serial();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let client = StackBuilder::new(URI).unwrap().with_api_key(ApiKey::new("k3y").unwrap());
    let client = client.client_with_service(NoOp).unwrap();
    let subject = subject();
    let call = || {
        let mut text = std::pin::pin!(client.get("/v1/resources?q=1").fetch_text());
        let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
        allocation_counter::measure(|| assert!(text.as_mut().poll(cx).is_ready())).count_total
    };
    let allocated = tracing::subscriber::with_default(all_disabled(), || {
        call();
        call()
    });
    let most = 14 - subject;
    assert!(allocated <= most, "{allocated} allocations, expected at most {most}");
}

/// Responds to each request of one connection, on another thread.
#[cfg(feature = "client")]
fn serve_connection(listener: std::net::TcpListener) {
    use std::io::{Read, Write};

    let (mut stream, _) = listener.accept().unwrap();
    let (mut request, mut part) = (Vec::new(), [0; 1024]);
    while let Ok(length @ 1..) = stream.read(&mut part) {
        request.extend_from_slice(&part[..length]);
        if request.ends_with(b"\r\n\r\n") {
            request.clear();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
        }
    }
}

/// The least of several calls counts, because a call allocates a task if its connection is not ready in time.
#[cfg(feature = "client")]
#[test]
fn get_with_a_query_over_http1_makes_at_most_20_allocations() {
    let _serial = serial();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = StackBuilder::new(format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let client = client.with_api_key(ApiKey::new("k3y").unwrap()).client().unwrap();
    std::thread::spawn(move || serve_connection(listener));
    let subject = subject();
    let call = || {
        let accept = HeaderValue::from_static("application/json");
        let request = client.get("/v1/resources").query(&[("q", 1)]).header("accept", accept);
        let response = runtime.block_on(async { request.await.unwrap().bytes().await.unwrap() });
        assert_eq!(response, "ok");
    };
    let allocated = tracing::subscriber::with_default(all_disabled(), || {
        (0..100).map(|_| allocation_counter::measure(call).count_total).min().unwrap()
    });
    let most = 21 - subject;
    assert!(allocated <= most, "{allocated} allocations, expected at most {most}");
}
