//! Tests tower's `Service` contract for the reqwest adapter. The adapter needs a real server, so the tests run in real
//! time.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Context, Waker},
};

use tower::{Service, ServiceExt};
use tower_outbound::{adapter::Reqwest, test_util::ScriptedServer};

use super::{
    cancellation::DropAfter,
    executor::{Schedule, Task, run_tasks},
};
use crate::support::{Scripted::*, ScriptedService, get, panic_text, secs};

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

#[tokio::test]
async fn call_that_is_dropped_after_any_poll_does_not_affect_another_call() {
    let server = ScriptedServer::start(ScriptedService::new([Delayed(20, 200)])).await.unwrap();
    let (adapter, url) = (adapter(), server.url());
    for polls in 0.. {
        let call = |polls| -> Task<_> {
            let call = adapter.clone().oneshot(get(&url));
            Box::pin(DropAfter { task: Some(Box::pin(call)), polls })
        };
        let calls = run_tasks(vec![call(polls), call(u32::MAX)], Schedule::default());
        let results = tokio::time::timeout(secs(60), calls).await.expect("a call hangs");
        let statuses = results
            .into_iter()
            .map(|result| result.unwrap().map(|response| response.unwrap().status().as_u16()));
        match statuses.collect::<Vec<_>>()[..] {
            [None, Some(200)] => {}
            [Some(200), Some(200)] => break,
            ref other => panic!("one call was dropped after {polls} polls: {other:?}"),
        }
    }
}
