//! Tests layers over a service whose `poll_ready` fails, once or always. The caller receives the error, and no request
//! is sent.

use std::error::Error as _;

use tokio::time::Instant;
use tower::{BoxError, Service, ServiceExt};
use tower_outbound::{Error, ErrorKind, call::Outcome};

use super::{
    all_layers::all_layers,
    call::{BoxedService, assert_usable, request, send},
    faulty_service::{Fault, FaultyService},
    layer_case::{LayerCase, ReadinessErrors},
};
use crate::support::{Broken, cause};

/// Calls the service. Returns the error, and whether `poll_ready` returned the error.
async fn call_error(service: &BoxedService, inner: &FaultyService, case: &LayerCase) -> (BoxError, bool) {
    let mut service = service.clone();
    match service.ready().await {
        Err(error) => (error, true),
        Ok(ready) => {
            let call = ready.call(request(&inner.plan, case.uri, 0, "200:5"));
            (call.await.map(|_| ()).unwrap_err(), false)
        }
    }
}

fn assert_readiness_error(case: &LayerCase, (error, from_poll_ready): (BoxError, bool)) {
    let label = &case.label;
    if case.readiness_errors == ReadinessErrors::Unchanged {
        assert!(error.is::<Broken>() && from_poll_ready, "{label}: {error:?}");
        return;
    }
    let error = error.downcast::<Error>().unwrap();
    assert!(error.is_service() && !error.is_timeout() && !error.is_rate_limited(), "{label}: {error:?}");
    assert_eq!(cause::<Broken>(&error), Some(&Broken), "{label}");
    assert!(
        error.source().is_some_and(|source| source.is::<Broken>()),
        "{label}: `Broken` is not the direct source of the error"
    );
    assert_eq!(error.kind(), ErrorKind::NotReady, "{label}");
    assert!(!error.may_have_been_processed(), "{label}");
    assert_eq!(from_poll_ready, case.readiness_errors == ReadinessErrors::FromPollReady, "{label}");
    if let (true, Some(report)) = (case.retries(), error.report()) {
        let outcomes: Vec<_> = report.attempts().iter().filter_map(|attempt| attempt.outcome).collect();
        assert_eq!(outcomes, [Outcome::NotSent; 3], "{label}");
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_readiness_error_reaches_the_caller_and_no_request_is_sent() {
    for case in all_layers() {
        let inner = FaultyService::faulty(0, u32::MAX, Fault::ReadinessError);
        let (service, state) = case.over(&inner);
        assert_readiness_error(&case, call_error(&service, &inner, &case).await);
        assert_eq!(inner.limited.calls(), 0, "{}", case.label);
        drop(service);
        // The two retries of the call return no credit to the retry budget, because no attempt succeeded.
        state.assert_idle(&case, &inner, 0, 2);
    }
}

/// A retry layer makes the next attempt with a new clone of the inner service. Without a retry layer, the caller can
/// make the next call with a new clone.
#[tokio::test(start_paused = true)]
async fn new_service_clone_works_after_one_readiness_error() {
    for case in all_layers() {
        let inner = FaultyService::faulty_once_after(0, Fault::ReadinessError);
        let (service, state) = case.over(&inner);
        if case.retries() {
            let call = send(service.clone(), request(&inner.plan, case.uri, 0, "200:5"), Instant::now());
            let outcomes: Vec<_> =
                call.await.unwrap().attempts.iter().filter_map(|attempt| attempt.outcome).collect();
            let ok = Outcome::Response(http::StatusCode::OK);
            assert_eq!(outcomes, [Outcome::NotSent, ok], "{}", case.label);
        } else {
            assert_readiness_error(&case, call_error(&service, &inner, &case).await);
            assert_eq!(inner.limited.calls(), 0, "{}", case.label);
        }
        assert!(inner.plan.is_exhausted());
        assert_usable(&service, &inner, case.uri).await;
        drop(service);
        state.assert_idle(&case, &inner, 0, 0);
    }
}
