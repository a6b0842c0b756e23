//! Tests tower's `Service` contract for the reqwest adapter. The adapter needs a real server, so the tests run in real
//! time.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Context, Waker},
};

use tower::Service;
use tower_outbound::{adapter::Reqwest, test_util::ScriptedServer};

use crate::support::{Scripted::*, ScriptedService, get, panic_text};

fn adapter() -> Reqwest {
    Reqwest::new(reqwest::Client::builder().no_proxy()).unwrap()
}

#[tokio::test]
async fn future_that_is_polled_after_completion_panics_with_a_clear_message() {
    let server = ScriptedServer::start(ScriptedService::new([Status(200)])).await.unwrap();
    let mut adapter = adapter();
    let mut future = Box::pin(adapter.call(get(&server.url())));
    assert!(poll_fn(|cx| future.as_mut().poll(cx)).await.is_ok());
    let mut cx = Context::from_waker(Waker::noop());
    let second = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx).is_pending()));
    assert_eq!(panic_text(&*second.unwrap_err()), Some("future polled after completion"));
}
