//! A future that is polled after completion panics with a clear message, even if the inner future would then be pending.
//! It sends nothing, holds no readiness, and changes neither its result nor its report.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Context, Poll, Waker},
};

use tower::{Service, ServiceExt};
use tower_outbound::{Error, Report};

use super::{
    crew::text_of,
    moody::{Mood, Moody},
    probe::secs,
    row::Row,
    rows::rows,
    sent::request,
};

async fn poll_again(row: &Row, mood: Mood, answers: &str, changes: &mut Vec<String>) {
    let moody = Moody::times(0, u32::MAX, mood);
    let (service, _books) = row.over(&moody);
    let mut called = service.clone();
    let Ok(ready) = called.ready().await else { return };
    let mut future = ready.call(request(&moody.plan, row.uri, 0, answers));
    let end = poll_fn(|cx| future.as_mut().poll(cx)).await;
    let report = match &end {
        Ok(answer) => Report::from_response(answer).cloned(),
        Err(error) => error.downcast_ref::<Error>().and_then(Error::report).cloned(),
    };
    let told = || report.as_ref().map(|report| (report.attempt_count(), report.stop_reason()));
    let (before, calls) = (told(), moody.probe.calls());
    for wait in [0, 0, 120] {
        let at = format!("{}, {mood:?}, {answers}, polled again after {wait} s", row.label);
        tokio::time::sleep(secs(wait)).await;
        let mut cx = Context::from_waker(Waker::noop());
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx))) {
            // The inner future is pending for ever after its end.
            Ok(Poll::Pending) => changes.push(format!("{at}: it is pending")),
            Ok(Poll::Ready(_)) => changes.push(format!("{at}: it completes again")),
            Err(panic) if text_of(&*panic) == "future polled after completion" => {}
            Err(panic) => changes.push(format!("{at}: {}", text_of(&*panic))),
        }
        if told() != before {
            changes.push(format!("{at}: the report's {before:?} is {:?}", told()));
        }
        if moody.probe.permits_taken() > 0 || !moody.faults().is_empty() {
            changes.push(format!("{at}: the service below is asked whether it is ready"));
        }
        assert_eq!(moody.probe.calls(), calls, "{at}: sent again");
    }
}

/// Reports the first change of each row.
#[tokio::test(start_paused = true)]
async fn panics_clearly_and_changes_nothing() {
    let mut changes = Vec::new();
    for row in rows() {
        let before = changes.len();
        for answers in ["200:5", "503:5", "401:0", "200:600000"] {
            poll_again(&row, Mood::Well, answers, &mut changes).await;
        }
        poll_again(&row, Mood::Fails, "200:5", &mut changes).await;
        changes.truncate(before + 1);
    }
    assert!(changes.is_empty(), "{changes:#?}");
}
