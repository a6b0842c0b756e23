//! Nothing is formatted or allocated for a level that is off.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    task::{Context, Poll, Waker},
};

use allocation_counter::AllocationInfo;
use http::{HeaderValue, Request, Response, StatusCode, header::RETRY_AFTER};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_outbound::{
    ApiKey, BoxError, Quota,
    attempt::AttemptLayer,
    auth::{AuthLayer, BearerAuthLayer, Form, FreshKey, Origin, ProvidedKey, Rotating},
    limit::{AnyLimiter, RateLimitLayer, SlidingWindow, TokenBucket},
    request_id::RequestIdLayer,
    retry::RetryLayer,
};
use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{Registry, filter::filter_fn, layer::SubscriberExt};

use super::URI;

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
    let layers = (RequestIdLayer::new().with_service("rates"), RetryLayer::new());
    let unheard = allocations(layers.layer(NoOp));
    let bare = allocations(NoOp);
    let attempt = AttemptLayer::new();
    let all = (layers, attempt.clone());
    assert_eq!(allocations(attempt.layer(NoOp)), bare, "no subscriber");
    assert_eq!(allocations(all.layer(NoOp)), unheard, "no subscriber, the attempt's in the stack");

    let deaf = Registry::default().with(LevelFilter::WARN);
    tracing::subscriber::with_default(deaf, || {
        assert_eq!(allocations(attempt.layer(NoOp)), bare, "at level warn");
        assert_eq!(allocations(all.layer(NoOp)), unheard, "at level warn, the whole stack");
    });
    // And the count would show it.
    let heard = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
    tracing::subscriber::with_default(heard, || assert!(allocations(all.layer(NoOp)) > unheard));
}

#[test]
fn limit_and_auth_alone_allocate_nothing_but_the_header() {
    let bare = allocations(NoOp);
    let limit = RateLimitLayer::new(TokenBucket::new(Quota::per_minute(100).unwrap()));
    assert_eq!(allocations(limit.layer(NoOp)), bare);
    for (any, boxed) in [
        (AnyLimiter::new(limit.limiter().clone()), 0),
        (AnyLimiter::new(SlidingWindow::new(Quota::per_minute(100).unwrap())), 0),
        (AnyLimiter::new(std::sync::Arc::new(limit.limiter().clone())), 0),
    ] {
        let shown = format!("{any:?}");
        assert_eq!(allocations(RateLimitLayer::new(any).layer(NoOp)), bare + boxed, "{shown}");
    }

    let by_hand = allocations(tower::util::MapRequest::new(NoOp, |mut request: Request<Content>| {
        let key = HeaderValue::from_static("Bearer k3y");
        request.headers_mut().insert(http::header::AUTHORIZATION, key);
        request
    }));
    let auth = BearerAuthLayer::new(ApiKey::new("k3y").unwrap(), Origin::parse(URI).unwrap()).unwrap();
    assert_eq!(allocations(auth.layer(NoOp)), by_hand);
}

/// What one call of a whole stack allocates, over a server that answers by this script; a 429 asks for a pause. The stack
/// tells all that it can: a wait for the limiter, and a key that is fetched and replaced.
fn of_a_call(script: &'static [u16], uri: &str) -> AllocationInfo {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let _inside = runtime.enter();
    let keys = ProvidedKey::new(|| ready(ApiKey::new("k3y").map(FreshKey::new).map_err(BoxError::from)));
    let auth = AuthLayer::with(Rotating::new(Form::bearer(), keys), Origin::parse(URI).unwrap()).unwrap();
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
        .layer(RateLimitLayer::new(TokenBucket::new(Quota::per_second(2).unwrap().with_burst(1).unwrap())))
        .layer(AttemptLayer::new())
        .layer(auth)
        .service(service_fn(server));
    // The caller's own id, which is as long as the rest, so that a copy of it shows.
    let request = Request::get(uri).header("x-request-id", uri).body(Content::new()).unwrap();
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
    let long = format!("{URI}/{}", "x".repeat(10_000));
    let others: fn() -> Box<dyn Subscriber + Send + Sync> =
        || Box::new(Registry::default().with(filter_fn(|metadata| metadata.target() == "other")));
    let off: fn() -> Box<dyn Subscriber + Send + Sync> =
        || Box::new(Registry::default().with(LevelFilter::OFF));
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
        let _first_of_all = of_a_call(script, URI);
        let unheard = total(of_a_call(script, URI));
        assert!(unheard.0 <= most, "{} allocations, {script:?}", unheard.0);
        assert_eq!(total(of_a_call(script, &long)), unheard, "nothing of the request is written: {script:?}");
        for (name, deaf) in [("off", off), ("for others", others)] {
            tracing::subscriber::with_default(deaf(), || {
                let _first_of_all = of_a_call(script, URI);
                assert_eq!(total(of_a_call(script, URI)), unheard, "{name}: {script:?}");
            });
        }
        let heard = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
        tracing::subscriber::with_default(heard, || {
            let (short, long) = (total(of_a_call(script, URI)), total(of_a_call(script, &long)));
            assert!(short > unheard && long.1 > short.1 + 10_000, "the count would show it: {script:?}");
        });
    }
}
