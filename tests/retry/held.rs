//! The resources that a call holds while it waits.

use std::{
    io::{self, ErrorKind::BrokenPipe},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_outbound::{body::ReplayBody, call::CallContext, retry::RetryLayer};

use super::{
    URI,
    support::{Content, Scripted::*, ScriptedService, get, millis, secs},
};

#[tokio::test(start_paused = true)]
async fn dropping_a_call_during_its_backoff_leaves_nothing_running() {
    let probe = ScriptedService::new([Status(503)]);
    let mut call = task::spawn(RetryLayer::new().layer(probe.clone()).oneshot(get(URI)));
    assert_pending!(call.poll());
    assert_eq!(probe.calls(), 1, "the first attempt has failed");
    assert!(probe.instances() > 1);
    drop(call);
    assert_eq!(probe.instances(), 1);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "no task was spawned");
    tokio::time::sleep(secs(60)).await;
    assert_eq!(probe.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn wakes_the_task_once_for_each_backoff() {
    let mut call = task::spawn(
        RetryLayer::new().layer(ScriptedService::new([Status(429), Status(200)])).oneshot(get(URI)),
    );
    assert_pending!(call.poll());
    // The drained body is one frame in memory. After it only the sleep wakes the task.
    while call.is_woken() {
        assert_pending!(call.poll());
    }
    tokio::time::advance(millis(490)).await;
    assert!(!call.is_woken());
    tokio::time::advance(millis(515)).await;
    assert!(call.is_woken());
    assert_eq!(assert_ready_ok!(call.poll()).status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_call_in_its_backoff_holds_no_permit_of_a_concurrency_limit() {
    let probe = ScriptedService::new([Headers(503, &[("retry-after", "60")]), Status(200)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(tower::limit::ConcurrencyLimitLayer::new(1))
        .service(probe.clone());
    let start = Instant::now();
    let mut sleeping = task::spawn(service.clone().oneshot(get(URI)));
    assert_pending!(sleeping.poll());
    assert_eq!(probe.calls(), 1);
    service.oneshot(get(URI)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(sleeping.await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn polls_readiness_before_each_attempt_and_sends_one_at_a_time() {
    let (mut service, mut handle) =
        tower_test::mock::spawn_layer::<Request<ReplayBody<Content>>, Response<Content>, _>(
            RetryLayer::new().with_seed(1),
        );
    handle.allow(0);
    assert!(service.poll_ready::<Request<Content>>().is_ready(), "the retry layer is ready at once");
    let mut call = task::spawn(service.call(get(URI)));
    assert_pending!(call.poll());
    assert!(handle.poll_request().is_pending(), "the mock is not ready yet");
    handle.allow(1);
    assert!(call.is_woken());
    assert_pending!(call.poll());
    let (_, first) = handle.next_request().await.unwrap();
    first.send_response(Response::builder().status(503).body(Content::default()).unwrap());
    assert_pending!(call.poll());
    tokio::time::advance(millis(105)).await;
    assert_pending!(call.poll());
    handle.allow(1);
    assert_pending!(call.poll());
    let (second, answer) = handle.next_request().await.unwrap();
    assert_eq!(second.extensions().get::<CallContext>().unwrap().attempt(), 2);
    drop(second); // it holds the body, which is replayed once the attempt releases it
    answer.send_error(io::Error::from(BrokenPipe));
    assert_pending!(call.poll());
    tokio::time::advance(millis(205)).await;
    handle.allow(1);
    assert_pending!(call.poll());
    let (_, third) = handle.next_request().await.unwrap();
    third.send_response(Response::new(Content::default()));
    assert_eq!(assert_ready_ok!(call.poll()).status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_failure_needs_no_runtime_and_no_sleep() {
    let outside = std::thread::spawn(|| {
        let mut call =
            task::spawn(RetryLayer::new().layer(ScriptedService::new([Status(404)])).oneshot(get(URI)));
        assert_eq!(assert_ready_ok!(call.poll()).status(), 404);
    });
    outside.join().unwrap();
}
