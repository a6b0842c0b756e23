//! An inner service that does not get ready.

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
    URI,
    probe::{
        Answer::{self as Step, Io, Is, Refused},
        Broken, Content, Probe, cause, request,
    },
    report,
};

/// Breaks where its script has nothing, for good in the instance that was asked; otherwise answers by it.
struct Fragile {
    script: Arc<[Option<Step>]>,
    asked: Arc<AtomicUsize>,
    next: Option<Probe>,
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
    type Future = <Probe as Service<Request<ReplayBody<Content>>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        assert!(!self.broke, "asked again after it broke");
        match self.script.get(self.asked.fetch_add(1, Relaxed)).copied().flatten() {
            Some(answer) => {
                let probe = self.next.insert(Probe::new([answer]));
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

/// What comes out, how each attempt ended, and why there was no further one.
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
async fn a_retry_that_does_not_get_ready_hides_not_what_it_was_to_retry() {
    let (result, outcomes, ended) = came("GET", &[Some(Io(ConnectionReset)), None]).await;
    let error = result.unwrap_err();
    let source = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
    assert_eq!(source.kind(), ConnectionReset);
    assert_eq!((outcomes.as_slice(), ended), (&[Failed, NotSent, NotSent][..], Some(Exhausted)));

    // Two failed: it is the later one.
    let script = [Some(Io(ConnectionReset)), Some(Io(BrokenPipe)), None];
    let (result, outcomes, _) = came("GET", &script).await;
    assert_eq!(cause::<io::Error>(&result.unwrap_err()).unwrap().kind(), BrokenPipe);
    assert_eq!(outcomes, [Failed, Failed, NotSent]);
}

#[tokio::test(start_paused = true)]
async fn a_post_that_was_not_sent_goes_on_until_it_was() {
    let (result, outcomes, ended) = came("POST", &[Some(Refused), None]).await;
    assert_eq!(cause::<io::Error>(&result.unwrap_err()).unwrap().kind(), ConnectionRefused);
    assert_eq!((outcomes.as_slice(), ended), (&[NotSent, NotSent, NotSent][..], Some(Exhausted)));

    let (result, outcomes, ended) = came("POST", &[None, Some(Io(ConnectionReset))]).await;
    assert_eq!(cause::<io::Error>(&result.unwrap_err()).unwrap().kind(), ConnectionReset);
    assert_eq!((outcomes.as_slice(), ended), (&[NotSent, Failed][..], Some(NotIdempotent)));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_gets_ready_again_is_called_again() {
    let ok = StatusCode::OK;
    for method in ["PUT", "POST"] {
        let (result, outcomes, ended) = came(method, &[None, None, Some(Is(200))]).await;
        assert_eq!(result.unwrap(), 200);
        assert_eq!(
            (outcomes.as_slice(), ended),
            (&[NotSent, NotSent, Outcome::Response(ok)][..], Some(Success))
        );
    }
    let (result, outcomes, _) = came("PUT", &[Some(Io(ConnectionReset)), None, Some(Is(200))]).await;
    assert_eq!(result.unwrap(), 200);
    assert_eq!(outcomes, [Failed, NotSent, Outcome::Response(ok)]);
}

#[tokio::test(start_paused = true)]
async fn a_first_attempt_that_does_not_get_ready_is_itself_what_comes_out() {
    let service = RetryLayer::new().with_max_attempts(1).unwrap().layer(Fragile::new(&[]));
    let error = service.oneshot(request("GET", URI)).await.unwrap_err();
    assert_eq!(error.source().unwrap().downcast_ref(), Some(&Broken));
    let report = error.report().unwrap();
    assert_eq!((report.attempt_count(), report.stop_reason()), (1, Some(Exhausted)));
    assert_eq!(report.attempts()[0].outcome, Some(NotSent));
}

#[tokio::test(start_paused = true)]
async fn an_answer_before_it_is_in_the_report() {
    let (result, outcomes, _) = came("GET", &[Some(Is(503)), None]).await;
    assert_eq!(cause(&result.unwrap_err()), Some(&Broken));
    assert_eq!(outcomes, [Outcome::Response(StatusCode::SERVICE_UNAVAILABLE), NotSent, NotSent]);
}
