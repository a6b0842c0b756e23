//! The adapter that is a service, over a real server and so in real time.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Context, Waker},
};

use tower::{Service, ServiceExt};
use tower_outbound::{adapter::Reqwest, test_util::ScriptedServer};

use super::{
    crew::{Schedule, Task, crew, text_of},
    dropped::Cut,
    probe::{Scripted::*, ScriptedService, get, secs},
};

fn reqwest() -> Reqwest {
    Reqwest::new(::reqwest::Client::builder().no_proxy()).unwrap()
}

#[tokio::test]
async fn a_call_that_is_dropped_after_any_poll_takes_nobody_along() {
    let server = ScriptedServer::start(ScriptedService::new([Delayed(20, 200)])).await.unwrap();
    let (reqwest, url) = (reqwest(), server.url());
    for polls in 0.. {
        let call = |polls| -> Task<_> {
            let call = reqwest.clone().oneshot(get(&url));
            Box::pin(Cut { task: Some(Box::pin(call)), polls })
        };
        let calls = crew(vec![call(polls), call(u32::MAX)], Schedule::default());
        let ends = tokio::time::timeout(secs(60), calls).await.expect("it hangs");
        let statuses =
            ends.into_iter().map(|end| end.unwrap().map(|answer| answer.unwrap().status().as_u16()));
        match statuses.collect::<Vec<_>>()[..] {
            [None, Some(200)] => {}
            [Some(200), Some(200)] => break,
            ref other => panic!("dropped after {polls} polls: {other:?}"),
        }
    }
}

#[tokio::test]
async fn panics_clearly_if_polled_after_completion() {
    let server = ScriptedServer::start(ScriptedService::new([Status(200)])).await.unwrap();
    let mut reqwest = reqwest();
    let mut future = Box::pin(reqwest.call(get(&server.url())));
    assert!(poll_fn(|cx| future.as_mut().poll(cx)).await.is_ok());
    let mut cx = Context::from_waker(Waker::noop());
    let again = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx).is_pending()));
    assert_eq!(text_of(&*again.unwrap_err()), "future polled after completion");
}
