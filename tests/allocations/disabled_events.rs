//! Tests that log events of a disabled level format nothing, and that a call allocates at most one box for its log
//! event. These tests run in a separate process, because `tracing` caches for the whole process which levels are
//! enabled.

use std::{
    convert::Infallible,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use allocation_counter::AllocationInfo;
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

#[test]
fn spans_and_events_of_a_disabled_level_allocate_nothing() {
    let _serial = serial();
    let layers = (RequestIdLayer::new().with_service("rates"), RetryLayer::new());
    let without_layer = allocations(NoOp);
    let subject = subject();
    let attempt = AttemptSpanLayer::new();
    let stack = (layers.clone(), attempt.clone());
    let disabled = tracing::subscriber::with_default(all_disabled(), || {
        let disabled = allocations(layers.layer(NoOp));
        assert_eq!(
            allocations(attempt.layer(NoOp)),
            without_layer,
            "the attempt's span allocates nothing at level OFF"
        );
        assert_eq!(
            allocations(stack.layer(NoOp)),
            disabled,
            "the attempt's span adds no allocation to the stack at level OFF"
        );
        disabled
    });

    let warn = Registry::default().with(LevelFilter::WARN);
    tracing::subscriber::with_default(warn, || {
        assert_eq!(
            allocations(attempt.layer(NoOp)),
            without_layer,
            "the attempt's span allocates nothing at level WARN"
        );
        assert_eq!(
            allocations(stack.layer(NoOp)),
            disabled + subject,
            "at level WARN, the stack allocates nothing more than a box for the log event of the call"
        );
    });
    // The last assertion proves that the measurement includes the allocations of enabled events.
    tracing::subscriber::with_default(all_enabled(), || assert!(allocations(stack.layer(NoOp)) > disabled));
}

/// Measures the allocations of one call through a complete stack. The server returns `statuses` in order, and adds
/// `Retry-After` to a 429. The call causes log events of all layers, such as a wait for the limiter and a key refresh.
fn measure_call(statuses: &'static [u16], (uri, id): (&str, &str)) -> AllocationInfo {
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
    allocated
}

fn total(allocated: AllocationInfo) -> (u64, u64) {
    (allocated.count_total, allocated.bytes_total)
}

/// `most` is the measured number of allocations, and does not depend on features of this crate. A higher number means
/// that a disabled event formats text, or that the code or a dependency allocates more than before.
#[test]
fn disabled_log_events_format_no_part_of_a_request_whatever_the_outcome() {
    let _serial = serial();
    let subject = subject();
    // The long URI and the long id are longer by this number of bytes. The head of the request, which the retry layer
    // copies, has less than 1,024 bytes even then.
    const LONG: usize = 300;
    // Both ids are too long for the head of a request that is recorded without an allocation.
    const SHORT: usize = 200;
    let short_id = "x".repeat(SHORT);
    let short = (URI, short_id.as_str());
    let (uri, id) = (format!("{URI}/{}", "x".repeat(LONG - 1)), "x".repeat(SHORT + LONG));
    let long = (uri.as_str(), id.as_str());
    let other_target = || Registry::default().with(filter_fn(|metadata| metadata.target() == "other"));
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
            let _initializes_lazily = measure_call(statuses, short);
            (total(measure_call(statuses, short)), total(measure_call(statuses, long)))
        };
        let (disabled, disabled_long) = tracing::subscriber::with_default(all_disabled(), measure);
        assert!(
            disabled.0 <= most,
            "{} allocations, expected at most {most}, with statuses {statuses:?}",
            disabled.0
        );
        // The URI and the request id are copied with the request's head: once for a possible retry, and once for each
        // further attempt. The id is also copied twice for each attempt that is queued.
        let (most_copies, length) = (4 * statuses.len() as u64, LONG as u64);
        let copies = disabled_long.1 - disabled.1;
        assert!(
            disabled_long.0 == disabled.0 && copies % length == 0 && copies <= most_copies * length,
            "the allocations depend on the length of the URI: {disabled:?}, {disabled_long:?}, {statuses:?}"
        );
        // `RequestIdLayer` checks only the level of its log event, not the target. Therefore it allocates the event's
        // box even if the target is disabled.
        tracing::subscriber::with_default(other_target(), || {
            let ((count, bytes), long) = measure();
            assert_eq!(
                count,
                disabled.0 + subject,
                "allocations if only another target is enabled: {statuses:?}"
            );
            assert_eq!(
                long,
                (count, bytes + copies),
                "allocated bytes if only another target is enabled: {statuses:?}"
            );
        });
        tracing::subscriber::with_default(all_enabled(), || {
            let (short, long) = measure();
            let is_counted = short > disabled && long.1 >= short.1 + copies + length;
            assert!(
                is_counted,
                "the measurement does not include enabled events, with statuses {statuses:?}"
            );
        });
    }
}

/// `RequestIdLayer` prepares a log event only if the maximum level of the process allows the event.
#[test]
fn completed_call_is_logged_if_the_event_level_equals_the_maximum_level() {
    let _serial = serial();
    for level in [Level::ERROR, Level::WARN, Level::INFO] {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let counter = filter_fn(move |metadata| {
            counted.fetch_add(usize::from(metadata.is_event()), Relaxed);
            true
        });
        let layers = RequestIdLayer::new().with_log_level(level);
        let only = Registry::default().with(LevelFilter::from(level)).with(counter);
        tracing::subscriber::with_default(only, || allocations(layers.layer(NoOp)));
        assert!(count.load(Relaxed) > 0, "no event was logged at level {level}");
    }
}

/// A GET makes these nine allocations: the id, the call, the copy of the head, and three for each of the extensions of
/// the request and of the response (a map, the map's table, and a box for the value).
#[test]
fn complete_stack_makes_nine_allocations_for_a_get() {
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
fn client_makes_one_allocation_to_keep_a_get_until_its_body_was_read() {
    let _serial = serial();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let client = StackBuilder::new(URI).unwrap().with_api_key(ApiKey::new("k3y").unwrap());
    let client = client.client_with_service(NoOp).unwrap();
    let subject = subject();
    // The builder of the request with a header has already made the two allocations of the header map.
    for (header, expected) in [(None, 15), (Some("text/csv"), 13)] {
        let call = || {
            let get = client.get("/v1/resources?q=1");
            let get = match header {
                Some(value) => get.header("accept", value),
                None => get,
            };
            let mut text = std::pin::pin!(get.fetch_text());
            let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
            allocation_counter::measure(|| assert!(text.as_mut().poll(cx).is_ready())).count_total
        };
        let allocated = tracing::subscriber::with_default(all_disabled(), || {
            call();
            call()
        });
        assert!(allocated <= expected - subject, "{allocated} allocations with the header {header:?}");
    }
}
