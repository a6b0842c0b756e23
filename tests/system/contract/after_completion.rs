//! Tests that a layer's response future panics with a clear message if it is polled after its completion, even if the
//! inner future would be pending. Also tests that the poll sends no request and does not change the call's report.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Context, Poll, Waker},
};

use tower::{Service, ServiceExt};
use tower_outbound::{Error, Report};

use super::{
    all_layers::all_layers,
    call::request,
    faulty_service::{Fault, FaultyService},
    layer_case::LayerCase,
};
use crate::support::{panic_text, secs};

async fn poll_after_completion(case: &LayerCase, fault: Fault, responses: &str, failures: &mut Vec<String>) {
    let inner = FaultyService::faulty(0, u32::MAX, fault);
    let (service, _state) = case.over(&inner);
    let mut service = service.clone();
    let Ok(ready) = service.ready().await else { return };
    let mut future = ready.call(request(&inner.plan, case.uri, 0, responses));
    let result = poll_fn(|cx| future.as_mut().poll(cx)).await;
    let report = match &result {
        Ok(response) => Report::from_response(response).cloned(),
        Err(error) => error.downcast_ref::<Error>().and_then(Error::report).cloned(),
    };
    let summary = || report.as_ref().map(|report| (report.attempt_count(), report.stop_reason()));
    let (before, calls) = (summary(), inner.limited.calls());
    for delay in [0, 0, 120] {
        let context = format!("{}, {fault:?}, {responses}, polled again after {delay} s", case.label);
        tokio::time::sleep(secs(delay)).await;
        let mut cx = Context::from_waker(Waker::noop());
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx))) {
            Ok(Poll::Pending) => failures.push(format!("{context}: the future is pending")),
            Ok(Poll::Ready(_)) => failures.push(format!("{context}: the future completes again")),
            Err(panic) => match panic_text(&*panic).expect("a panic message") {
                "future polled after completion" => {}
                other => failures.push(format!("{context}: {other}")),
            },
        }
        if summary() != before {
            failures.push(format!("{context}: the report changed from {before:?} to {:?}", summary()));
        }
        if inner.limited.permits_taken() > 0 || !inner.violations().is_empty() {
            failures.push(format!("{context}: the inner service was polled for readiness"));
        }
        assert_eq!(inner.limited.calls(), calls, "{context}: the request was resent");
    }
}

#[tokio::test(start_paused = true)]
async fn future_that_is_polled_after_completion_panics_without_side_effects() {
    let mut failures = Vec::new();
    for case in all_layers() {
        let before = failures.len();
        for responses in ["200:5", "503:5", "401:0", "200:600000"] {
            poll_after_completion(&case, Fault::None, responses, &mut failures).await;
        }
        poll_after_completion(&case, Fault::ReadinessError, "200:5", &mut failures).await;
        // At most one failure per layer is kept, so that the output stays short.
        failures.truncate(before + 1);
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
