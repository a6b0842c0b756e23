//! Nothing is formatted or allocated for a level that is off, but for what a line keeps that may yet be heard. A process of its own: what anybody listens to in it counts for
//! all.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use allocation_counter::AllocationInfo;
use http::{HeaderValue, Request, Response, StatusCode, header::RETRY_AFTER};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    ApiKey, BoxError, Quota,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, FreshKey, Origin, RefreshingKey},
    limit::{AnyLimiter, KeyedBucket, RateLimitLayer, SlidingWindow, TokenBucket},
    request_id::RequestIdLayer,
    retry::RetryLayer,
};
use tracing::{Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{Registry, filter::filter_fn, layer::SubscriberExt};

const URI: &str = "https://api.example.com/v1";

/// What a call keeps of its request for its line, where the level lets that be heard: in a box.
const SUBJECT: u64 = 1;

/// Nobody listens. Not without a subscriber: the level of one that has gone stays until the next comes.
fn off() -> impl Subscriber + Send + Sync {
    Registry::default().with(LevelFilter::OFF)
}

/// `tracing` has one level for the whole process, so that these tests go one by one.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

type Content = http_body_util::Empty<bytes::Bytes>;

#[derive(Clone)]
struct NoOp;

impl<B> Service<Request<B>> for NoOp {
    type Response = Response<Content>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Content>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Ok(()).into()
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Ok(Response::new(Content::new())))
    }
}

/// Allocations of one call.
fn allocations<S: Service<Request<Content>>>(mut service: S) -> u64 {
    let cx = &mut Context::from_waker(Waker::noop());
    let mut call = || {
        assert!(service.poll_ready(cx).is_ready());
        let request = Request::get("https://api.example.com/v1?q=1").body(Content::new()).unwrap();
        assert!(pin!(service.call(request)).poll(cx).is_ready());
    };
    call();
    allocation_counter::measure(call).count_total
}

#[test]
fn nothing_is_allocated_for_what_nobody_hears() {
    let _alone = alone();
    let layers = (RequestIdLayer::new().with_service("rates"), RetryLayer::new());
    let bare = allocations(NoOp);
    let attempt = AttemptSpanLayer::new();
    let all = (layers.clone(), attempt.clone());
    let unheard = tracing::subscriber::with_default(off(), || {
        let unheard = allocations(layers.layer(NoOp));
        assert_eq!(allocations(attempt.layer(NoOp)), bare, "off");
        assert_eq!(allocations(all.layer(NoOp)), unheard, "off, the attempt's in the stack");
        unheard
    });

    let deaf = Registry::default().with(LevelFilter::WARN);
    tracing::subscriber::with_default(deaf, || {
        assert_eq!(allocations(attempt.layer(NoOp)), bare, "at level warn");
        assert_eq!(allocations(all.layer(NoOp)), unheard + SUBJECT, "at level warn, the whole stack");
    });
    // And the count would show it.
    let heard = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_writer(std::io::sink).finish();
    tracing::subscriber::with_default(heard, || assert!(allocations(all.layer(NoOp)) > unheard));
}

#[test]
fn limit_and_auth_alone_allocate_nothing_but_the_header() {
    let _alone = alone();
    let bare = allocations(NoOp);
    let limit = RateLimitLayer::new(TokenBucket::new(Quota::per_minute(100).unwrap()));
    assert_eq!(allocations(limit.layer(NoOp)), bare);
    let keyed = KeyedBucket::new(|_| 0, |_key: &u8| TokenBucket::unlimited());
    let window = SlidingWindow::new(Quota::per_minute(100).unwrap());
    let bucket = limit.limiter().clone();
    for any in [AnyLimiter::new(bucket), AnyLimiter::new(window), AnyLimiter::new(keyed)] {
        let shown = format!("{any:?}");
        assert_eq!(allocations(RateLimitLayer::new(any).layer(NoOp)), bare, "{shown}");
    }

    let by_hand = allocations(tower::util::MapRequest::new(NoOp, |mut request: Request<Content>| {
        let key = HeaderValue::from_static("Bearer k3y");
        request.headers_mut().insert(http::header::AUTHORIZATION, key);
        request
    }));
    let auth = AuthLayer::new(ApiKey::new("k3y").unwrap(), Origin::parse(URI).unwrap()).unwrap();
    assert_eq!(allocations(auth.layer(NoOp)), by_hand);
}

/// What one call of a whole stack allocates, over a server that answers by this script; a 429 asks for a pause. The stack
/// tells all that it can: a wait for the limiter, and a key that is fetched and replaced.
fn of_a_call(script: &'static [u16], (uri, id): (&str, &str)) -> AllocationInfo {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let _inside = runtime.enter();
    let keys = RefreshingKey::new(|| ready(ApiKey::new("k3y").map(FreshKey::new).map_err(BoxError::from)));
    let auth = AuthLayer::new(keys, Origin::parse(URI).unwrap()).unwrap();
    let answers = AtomicUsize::new(0);
    let server = |_: Request<_>| {
        let mut response = Response::new(Content::new());
        let status = &script[answers.fetch_add(1, Relaxed)];
        *response.status_mut() = StatusCode::from_u16(*status).unwrap();
        if *status == 429 {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        ready(Ok::<_, Infallible>(response))
    };
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new().with_service("rates"))
        .layer(RetryLayer::new().with_seed(1))
        .layer(RateLimitLayer::new(TokenBucket::new(
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
    assert_eq!(status.unwrap().as_u16(), *script.last().unwrap());
    allocated
}

fn total(allocated: AllocationInfo) -> (u64, u64) {
    (allocated.count_total, allocated.bytes_total)
}

/// Failures as well as successes. `most` is what was counted with no event in the code at all: more than that is a text
/// that nobody asked for, or an allocation that a dependency has come to make.
#[test]
fn whatever_comes_of_a_call_what_is_off_costs_nothing() {
    let _alone = alone();
    const LONG: usize = 500;
    let short = (URI, "x");
    let (uri, id) = (format!("{URI}/{}", "x".repeat(10_000)), "x".repeat(1 + LONG));
    let long = (uri.as_str(), id.as_str());
    let others = || Registry::default().with(filter_fn(|metadata| metadata.target() == "other"));
    for (script, most) in [
        (&[200][..], 28),
        (&[404], 28),
        (&[503, 503, 503], 47),
        (&[429, 200], 38),
        (&[401, 200], 52),
        (&[401, 401], 52),
    ] {
        // With JSON each answer knows the key that its request carried: a map, its table and the key.
        let most = most + if cfg!(feature = "json") { 3 * script.len() as u64 } else { 0 };
        let unheard = || {
            let _first_of_all = of_a_call(script, short);
            (total(of_a_call(script, short)), total(of_a_call(script, long)))
        };
        let (unheard, unwritten) = tracing::subscriber::with_default(off(), unheard);
        assert!(unheard.0 <= most, "{} allocations, {script:?}", unheard.0);
        // The id once with the head that is kept for a retry, and once with each.
        let copies = (script.len() * LONG) as u64;
        assert_eq!(
            unwritten,
            (unheard.0, unheard.1 + copies),
            "nothing of the request is written: {script:?}"
        );
        // Whom it is for is not asked before the line is there.
        tracing::subscriber::with_default(others(), || {
            let _first_of_all = of_a_call(script, short);
            let (count, bytes) = total(of_a_call(script, short));
            assert_eq!(count, unheard.0 + SUBJECT, "for others: {script:?}");
            let long = total(of_a_call(script, long));
            assert_eq!(long, (count, bytes + copies), "nothing is written for others: {script:?}");
        });
        let heard =
            tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_writer(std::io::sink).finish();
        tracing::subscriber::with_default(heard, || {
            let (short, long) = (total(of_a_call(script, short)), total(of_a_call(script, long)));
            assert!(short > unheard && long.1 > short.1 + 10_000, "the count would show it: {script:?}");
        });
    }
}

/// The layer asks for the level of the process before it keeps what the event shows.
#[test]
fn logs_a_completed_call_at_error_if_the_process_logs_errors_only() {
    let _alone = alone();
    for level in [Level::ERROR, Level::WARN, Level::INFO] {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let counts = filter_fn(move |metadata| {
            counted.fetch_add(usize::from(metadata.is_event()), Relaxed);
            true
        });
        let layers = RequestIdLayer::new().with_log_level(level);
        let only = Registry::default().with(LevelFilter::from(level)).with(counts);
        tracing::subscriber::with_default(only, || allocations(layers.layer(NoOp)));
        assert!(count.load(Relaxed) > 0, "{level}");
    }
}
