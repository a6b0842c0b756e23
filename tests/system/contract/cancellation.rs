//! Tests that a call can be dropped after any poll. The dropped call releases its permits and its clones of the inner
//! service, and the calls that are queued behind the dropped call complete.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use super::{
    all_layers::all_layers,
    call::{assert_usable, request, send},
    executor::{Schedule, Task, run_tasks},
    faulty_service::FaultyService,
    layer_case::LayerCase,
};
use crate::support::{capture::Capture, millis};

/// Polls a task at most `polls` times. If the task is still pending, drops the task and completes with `None`.
pub(crate) struct DropAfter<T> {
    pub(crate) task: Option<Task<T>>,
    pub(crate) polls: u32,
}

impl<T> Future for DropAfter<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let polls = self.polls;
        let Some(task) = self.task.as_mut().filter(|_| polls > 0) else {
            self.task = None;
            return Poll::Ready(None);
        };
        if let Poll::Ready(output) = task.as_mut().poll(cx) {
            self.task = None;
            return Poll::Ready(Some(output));
        }
        self.polls -= 1;
        match self.polls {
            0 => Poll::Ready(self.task.take().and(None)),
            _ => Poll::Pending,
        }
    }
}

/// Runs three concurrent calls and drops call number `dropped` after `polls` polls. Returns whether call `dropped`
/// completed before the drop.
async fn completes_before_drop(case: &LayerCase, dropped: usize, polls: u32) -> bool {
    let (capture, _guard) = Capture::all();
    let inner = FaultyService::healthy().with_limited(|limited| limited.with_permits(2));
    let (service, state) = case.over(&inner);
    let start = tokio::time::Instant::now();
    let context = format!("{}, call {dropped} dropped after {polls} polls", case.label);
    let calls = (0..3).map(|task| -> Task<_> {
        let request = request(&inner.plan, case.uri, task, "503:10 200:5");
        let polls = if task == dropped { polls } else { u32::MAX };
        Box::pin(DropAfter { task: Some(Box::pin(send(service.clone(), request, start))), polls })
    });
    let results = run_tasks(calls.collect(), Schedule::default()).await;
    let mut completed = true;
    for (task, result) in results.into_iter().enumerate() {
        let result = result.unwrap_or_else(|panic| panic!("{context}: {panic}"));
        let status = if case.retries() { 200 } else { 503 };
        match result {
            None => completed = false,
            Some(result) => {
                assert_eq!(result.map(|record| record.status).ok(), Some(status), "{context}: {task}");
            }
        }
    }
    let lost = u32::from(!completed);
    state.assert_idle(case, &inner, 1, lost);
    assert_eq!(capture.open_spans(), [""; 0], "{context}: some spans are still open");
    assert_usable(&service, &inner, case.uri).await;
    // A key refresh continues even if no call waits for the new key.
    tokio::time::sleep(millis(100)).await;
    state.assert_idle(case, &inner, 1, lost);
    completed
}

#[tokio::test(start_paused = true)]
async fn call_dropped_after_any_poll_releases_its_permits_and_its_service_clones() {
    for case in all_layers() {
        for dropped in 0..3 {
            let mut polls = 0;
            while !completes_before_drop(&case, dropped, polls).await {
                polls += 1;
            }
            // A call waits for readiness, the request body, the response and the response body. In total, the call
            // returns `Pending` at least six times.
            assert!(polls >= 6, "{}: the call completed after only {polls} polls", case.label);
        }
    }
}
