//! A future that is polled again after its end does not panic, sends nothing and holds no readiness; nor has it a second
//! end, or changes what was told.

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

/// What comes of polling a future again.
#[derive(Default)]
struct Again {
    panics: Vec<String>,
    changes: Vec<String>,
}

async fn polled_again(row: &Row, mood: Mood, answers: &str, again: &mut Again) {
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
    let told = || report.as_ref().map(|report| (report.attempt_count(), report.ended()));
    let (before, calls) = (told(), moody.probe.calls());
    for wait in [0, 0, 120] {
        let at = format!("{}, {mood:?}, {answers}, polled again after {wait} s", row.label);
        tokio::time::sleep(secs(wait)).await;
        let mut cx = Context::from_waker(Waker::noop());
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx))) {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(_)) => again.changes.push(format!("{at}: it has a second end")),
            Err(panic) => again.panics.push(format!("{at}: {}", text_of(&*panic))),
        }
        if told() != before {
            again.changes.push(format!("{at}: the report's {before:?} is {:?}", told()));
        }
        if moody.probe.permits_taken() > 0 || !moody.faults().is_empty() {
            again.changes.push(format!("{at}: the service below is asked whether it is ready"));
        }
        assert_eq!(moody.probe.calls(), calls, "{at}: sent again");
    }
}

/// Only the first of each row's changes is told.
async fn all() -> Again {
    let mut again = Again::default();
    for row in rows() {
        let told = again.changes.len();
        for answers in ["200:5", "503:5", "401:0"] {
            polled_again(&row, Mood::Well, answers, &mut again).await;
        }
        polled_again(&row, Mood::Fails, "200:5", &mut again).await;
        again.changes.truncate(told + 1);
    }
    again
}

#[tokio::test(start_paused = true)]
async fn it_does_not_panic_and_sends_nothing() {
    assert_eq!(all().await.panics, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn it_is_pending_and_leaves_all_as_it_was() {
    let changes = all().await.changes;
    assert!(changes.is_empty(), "{changes:#?}");
}
