//! An inner service that does not become ready.

use std::{
    error::Error as _,
    io::{self, ErrorKind::*},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use http::{Request, Response, StatusCode};
use tower::{BoxError, Layer, Service, ServiceExt};
use tower_outbound::{
    Body, Error,
    body::ReplayBody,
    call::{
        Outcome::{self, *},
        StopReason::{self, *},
    },
    retry::RetryLayer,
};

use super::{
    URI, report,
    support::{
        Broken, Content,
        Scripted::{self as Step, Io, Refused, Status},
        ScriptedService, cause, request,
    },
};

/// Responds by its script. Where the script has `None`, `poll_ready` fails, and that instance stays broken.
struct Fragile {
    script: Arc<[Option<Step>]>,
    asked: Arc<AtomicUsize>,
    next: Option<ScriptedService>,
    broke: bool,
}

impl Fragile {
    fn new(script: &[Option<Step>]) -> Self {
        Self { script: script.into(), asked: Arc::default(), next: None, broke: false }
    }
}

impl Clone for Fragile {
    fn clone(&self) -> Self {
        Self { script: Arc::clone(&self.script), asked: Arc::clone(&self.asked), next: None, broke: false }
    }
}

impl Service<Request<ReplayBody<Content>>> for Fragile {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = <ScriptedService as Service<Request<ReplayBody<Content>>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        assert!(!self.broke, "polled again after it failed");
        match self.script.get(self.asked.fetch_add(1, Relaxed)).copied().flatten() {
            Some(answer) => {
                let probe = self.next.insert(ScriptedService::new([answer]));
                Service::<Request<ReplayBody<Content>>>::poll_ready(probe, cx)
            }
            None => {
                self.broke = true;
                Poll::Ready(Err(Broken.into()))
            }
        }
    }

    fn call(&mut self, request: Request<ReplayBody<Content>>) -> Self::Future {
        self.next.take().expect("called without having been polled ready").call(request)
    }
}

/// Returns the result, the outcome of each attempt, and the stop reason.
async fn came(
    method: &str,
    script: &[Option<Step>],
) -> (Result<u16, Error>, Vec<Outcome>, Option<StopReason>) {
    let service = RetryLayer::new().layer(Fragile::new(script));
    let (result, report) = match service.oneshot(request(method, URI)).await {
        Ok(response) => (Ok(response.status().as_u16()), report(&response).clone()),
        Err(error) => {
            let report = error.report().unwrap().clone();
            (Err(error), report)
        }
    };
    let outcomes = report.attempts().iter().filter_map(|attempt| attempt.outcome).collect();
    (result, outcomes, report.stop_reason())
}

#[tokio::test(start_paused = true)]
async fn returns_the_earlier_error_if_the_service_is_not_ready_for_a_retry() {
    let (result, outcomes, ended) = came("GET", &[Some(Io(ConnectionReset)), None]).await;
    let error = result.unwrap_err();
    let source = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
    assert_eq!(source.kind(), ConnectionReset);
    assert_eq!((outcomes.as_slice(), ended), (&[Failed, NotSent, NotSent][..], Some(Exhausted)));

    // After two failed attempts, the later error is returned.
    let script = [Some(Io(ConnectionReset)), Some(Io(BrokenPipe)), None];
    let (result, outcomes, _) = came("GET", &script).await;
    assert_eq!(cause::<io::Error>(&result.unwrap_err()).unwrap().kind(), BrokenPipe);
    assert_eq!(outcomes, [Failed, Failed, NotSent]);
}

#[tokio::test(start_paused = true)]
async fn retries_post_until_it_may_have_been_sent() {
    let (result, outcomes, ended) = came("POST", &[Some(Refused), None]).await;
    assert_eq!(cause::<io::Error>(&result.unwrap_err()).unwrap().kind(), ConnectionRefused);
    assert_eq!((outcomes.as_slice(), ended), (&[NotSent, NotSent, NotSent][..], Some(Exhausted)));

    let (result, outcomes, ended) = came("POST", &[None, Some(Io(ConnectionReset))]).await;
    assert_eq!(cause::<io::Error>(&result.unwrap_err()).unwrap().kind(), ConnectionReset);
    assert_eq!((outcomes.as_slice(), ended), (&[NotSent, Failed][..], Some(NotIdempotent)));
}

#[tokio::test(start_paused = true)]
async fn calls_a_service_that_becomes_ready_again() {
    let ok = StatusCode::OK;
    for method in ["PUT", "POST"] {
        let (result, outcomes, ended) = came(method, &[None, None, Some(Status(200))]).await;
        assert_eq!(result.unwrap(), 200);
        assert_eq!(
            (outcomes.as_slice(), ended),
            (&[NotSent, NotSent, Outcome::Response(ok)][..], Some(Success))
        );
    }
    let (result, outcomes, _) = came("PUT", &[Some(Io(ConnectionReset)), None, Some(Status(200))]).await;
    assert_eq!(result.unwrap(), 200);
    assert_eq!(outcomes, [Failed, NotSent, Outcome::Response(ok)]);
}

#[tokio::test(start_paused = true)]
async fn returns_the_readiness_error_of_a_first_attempt() {
    let service = RetryLayer::new().with_max_attempts(1).unwrap().layer(Fragile::new(&[]));
    let error = service.oneshot(request("GET", URI)).await.unwrap_err();
    assert_eq!(error.source().unwrap().downcast_ref(), Some(&Broken));
    let report = error.report().unwrap();
    assert_eq!((report.attempt_count(), report.stop_reason()), (1, Some(Exhausted)));
    assert_eq!(report.attempts()[0].outcome, Some(NotSent));
}

#[tokio::test(start_paused = true)]
async fn the_report_has_a_response_before_the_readiness_error() {
    let (result, outcomes, _) = came("GET", &[Some(Status(503)), None]).await;
    assert_eq!(cause(&result.unwrap_err()), Some(&Broken));
    assert_eq!(outcomes, [Outcome::Response(StatusCode::SERVICE_UNAVAILABLE), NotSent, NotSent]);
}
