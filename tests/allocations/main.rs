//! Tests of the number of allocations of each layer. The test process has no global tracing subscriber.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod disabled_events;
mod layers;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use http::{Request, Response};
use tower::Service;

const URI: &str = "https://api.example.com/v1";

/// Locks a global mutex, so that only one test runs at a time. `tracing` has one maximum level for the whole process.
fn serial() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

type Content = http_body_util::Empty<bytes::Bytes>;

/// A service that immediately responds with an empty 200.
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

/// Returns the number of allocations of the second call. The first call may also allocate for lazy initialization.
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
