//! Nothing is formatted or allocated for a level that is off.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::pin,
    task::{Context, Poll, Waker},
};

use http::{Request, Response};
use tower::{Layer, Service};
use tower_outbound::{attempt::AttemptLayer, request_id::RequestIdLayer, retry::RetryLayer};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Registry, layer::SubscriberExt};

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
