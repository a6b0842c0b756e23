//! Tests calls to an inner service whose `poll_ready` fails.

use std::{
    io::{self, ErrorKind::*},
    sync::atomic::AtomicUsize,
};

use http::Response;
use tower::{BoxError, util::BoxCloneSyncService};
use tower_outbound::{
    Body, Error,
    call::{
        Outcome::{self, *},
        StopReason::{self, *},
    },
};

use super::{
    support::{
        Broken,
        Scripted::{self, Io, Refused, Status},
        request,
    },
    *,
};

/// What one `poll_ready` of the service does: it becomes ready for one scripted call, or fails.
type Readiness = Result<Scripted, fn() -> BoxError>;

const BROKEN: Readiness = Err(|| Broken.into());
const OPEN: Readiness = Err(|| DeliveryError::circuit_open("too many failures").into());

/// A service that takes the next entry of its script at each `poll_ready`, and repeats the last one. The layer must not
/// poll a clone again after a failure.
struct ScriptedReadiness {
    script: Arc<[Readiness]>,
    polls: Arc<AtomicUsize>,
    next: Option<ScriptedService>,
    failed: bool,
}

impl Clone for ScriptedReadiness {
    fn clone(&self) -> Self {
        Self { script: Arc::clone(&self.script), polls: Arc::clone(&self.polls), next: None, failed: false }
    }
}

impl Service<Request<ReplayBody<Content>>> for ScriptedReadiness {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = <ScriptedService as Service<Request<ReplayBody<Content>>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        assert!(!self.failed, "the layer polled a service again whose `poll_ready` had failed");
        let poll = self.polls.fetch_add(1, Relaxed).min(self.script.len() - 1);
        match self.script[poll] {
            Ok(response) => {
                let inner = self.next.insert(ScriptedService::new([response]));
                Service::<Request<ReplayBody<Content>>>::poll_ready(inner, cx)
            }
            Err(error) => {
                self.failed = true;
                Poll::Ready(Err(error()))
            }
        }
    }

    fn call(&mut self, request: Request<ReplayBody<Content>>) -> Self::Future {
        self.next.take().expect("the layer called a service that was not ready").call(request)
    }
}

/// Makes a call, with a rate limit layer below the retry layer if `is_limited`. Returns the call's status or error, the
/// outcome of each attempt and the stop reason.
async fn call(
    method: &str,
    script: &[Readiness],
    is_limited: bool,
) -> (Result<u16, Error>, Vec<Outcome>, Option<StopReason>) {
    let (polls, next) = (Arc::default(), None);
    let inner = ScriptedReadiness { script: script.into(), polls, next, failed: false };
    let inner = match is_limited {
        true => {
            let limited = RateLimitLayer::new(LocalLimiter::without_quota()).layer(inner);
            let limited = limited.map_response(|response: Response<_>| response.map(Body::new));
            BoxCloneSyncService::new(limited.map_err(BoxError::from))
        }
        false => BoxCloneSyncService::new(inner),
    };
    let service = RetryLayer::new().layer(inner);
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

/// A failed `poll_ready` is an attempt that was not sent. Its error does not replace the error of an earlier attempt.
#[tokio::test(start_paused = true)]
async fn failed_readiness_is_retried_and_does_not_replace_the_error_of_an_attempt() {
    const OK: Outcome = Outcome::Response(StatusCode::OK);
    const UNAVAILABLE: Outcome = Outcome::Response(StatusCode::SERVICE_UNAVAILABLE);
    let (reset, closed) = (Ok(Io(ConnectionReset)), Ok(Io(BrokenPipe)));
    /// The status, the I/O error of an attempt, or the error of `poll_ready`.
    type Expected = Result<u16, Option<io::ErrorKind>>;
    type Case<'a> = (&'a str, &'a [Readiness], Expected, &'a [Outcome], StopReason);
    let cases: [Case<'_>; 10] = [
        ("GET", &[reset, BROKEN], Err(Some(ConnectionReset)), &[Failed, NotSent, NotSent], Exhausted),
        ("GET", &[reset, closed, BROKEN], Err(Some(BrokenPipe)), &[Failed, Failed, NotSent], Exhausted),
        ("POST", &[Ok(Refused), BROKEN], Err(Some(ConnectionRefused)), &[NotSent; 3], Exhausted),
        ("POST", &[BROKEN, reset], Err(Some(ConnectionReset)), &[NotSent, Failed], NotIdempotent),
        ("POST", &[BROKEN, BROKEN, Ok(Status(200))], Ok(200), &[NotSent, NotSent, OK], Success),
        ("PUT", &[reset, BROKEN, Ok(Status(200))], Ok(200), &[Failed, NotSent, OK], Success),
        ("PUT", &[BROKEN], Err(None), &[NotSent; 3], Exhausted),
        ("POST", &[BROKEN], Err(None), &[NotSent; 3], Exhausted),
        // The response of an earlier attempt was dropped, so the call cannot return it.
        ("GET", &[Ok(Status(503)), BROKEN], Err(None), &[UNAVAILABLE, NotSent, NotSent], Exhausted),
        ("GET", &[reset, Ok(Status(503)), BROKEN], Err(None), &[Failed, UNAVAILABLE, NotSent], Exhausted),
    ];
    for is_limited in [false, true] {
        for (number, (method, script, expected, outcomes, stop_reason)) in cases.iter().enumerate() {
            let (result, actual, reason) = call(method, script, is_limited).await;
            let case = format!("case {number}, with a limiter: {is_limited}");
            assert_eq!((&actual[..], reason), (*outcomes, Some(*stop_reason)), "{case}");
            match (result, expected) {
                (Ok(status), expected) => assert_eq!(Ok(status), *expected, "{case}"),
                (Err(error), Err(None)) => assert_eq!(cause(&error), Some(&Broken), "{case}"),
                (Err(error), expected) => {
                    assert_eq!(Err(cause::<io::Error>(&error).map(io::Error::kind)), *expected, "{case}");
                }
            }
        }
    }
}

/// A circuit breaker may reject a request in `poll_ready`.
#[tokio::test(start_paused = true)]
async fn open_circuit_in_poll_ready_ends_the_call() {
    for is_limited in [false, true] {
        let (result, outcomes, _) = call("GET", &[OPEN], is_limited).await;
        let error = result.unwrap_err();
        assert_eq!((error.kind(), &outcomes[..]), (ErrorKind::CircuitOpen, &[NotSent][..]));
        assert!(!error.may_have_been_processed());
    }
}
