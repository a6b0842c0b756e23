//! Tests that a panic of the inner service or of a body reaches the caller unchanged. Concurrent calls complete, and
//! the service stays usable.

use super::{
    all_layers::all_layers,
    call::{assert_usable, request, send},
    executor::{Schedule, Task, run_tasks},
    faulty_service::{Fault, FaultyService, PANIC, PanicPoint},
    layer_case::LayerCase,
};
use crate::support::capture::Capture;

const CALLS: usize = 3;

/// Runs three concurrent calls. The inner service panics once, after `before` visits of the panic point. Returns
/// `false` if no panic occurs, because the calls visit the panic point at most `before` times.
async fn one_of_three_panics(case: &LayerCase, point: PanicPoint, before: u32) -> bool {
    let (capture, _guard) = Capture::all();
    let inner = FaultyService::faulty_once_after(before, Fault::Panic(point))
        .with_limited(|limited| limited.with_permits(2));
    let (service, state) = case.over(&inner);
    let start = tokio::time::Instant::now();
    let calls = (0..CALLS).map(|task| -> Task<_> {
        let request = request(&inner.plan, case.uri, task, "503:10 200:5");
        Box::pin(send(service.clone(), request, start))
    });
    let results = run_tasks(calls.collect(), Schedule::default()).await;
    let context = format!("{}, {point:?} after {before} visits", case.label);
    let has_panicked = inner.plan.is_exhausted();
    let lost = u32::from(results.iter().any(Result::is_err));
    let (panicked, completed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_err);
    let panicked: Vec<_> = panicked.into_iter().filter_map(Result::err).collect();
    assert_eq!(panicked, vec![PANIC; usize::from(has_panicked)], "{context}");
    let status = if case.retries() { 200 } else { 503 };
    for result in completed {
        let record = result.unwrap().unwrap_or_else(|error| panic!("{context}: {error:?}"));
        assert_eq!(record.status, status, "{context}");
    }
    state.assert_idle(case, &inner, 1, lost);
    assert_eq!(capture.open_spans(), [""; 0], "{context}: some spans are still open");
    if has_panicked {
        assert_usable(&service, &inner, case.uri).await;
        drop(service);
        state.assert_idle(case, &inner, 0, lost);
    }
    has_panicked
}

/// For every layer and panic point, runs three concurrent calls repeatedly. The first run panics at the first visit of
/// the panic point, the second run at the second visit, and so on.
#[tokio::test(start_paused = true)]
async fn panic_of_the_inner_service_or_of_a_body_does_not_affect_other_calls() {
    use PanicPoint::{Call, Future, PollReady, RequestBody, ResponseBody};
    for point in [PollReady, Call, Future, RequestBody, ResponseBody] {
        for case in all_layers() {
            let mut before = 0;
            while one_of_three_panics(&case, point, before).await {
                before += 1;
            }
            assert!(
                before >= CALLS as u32,
                "{}: the calls visited {point:?} only {before} times",
                case.label
            );
        }
    }
}
