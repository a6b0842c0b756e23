use std::{
    fmt,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit},
    task::unconstrained,
};
use tower_service::Service;

use super::{Answer, Arrivals, Seen, answer::Reads, script::Script};
use crate::{body::Body, error::BoxError};

/// Stands in for a client and the server behind it: answers requests by a script, keeps each of them, and holds its
/// callers to tower's contract.
///
/// # Default
///
/// The first request gets the first answer and so on, in the order of arrival, and those after the last one get the
/// last one again. Always ready.
///
/// # Panics
///
/// Panics if it is called without having been polled ready, or if its script is empty. The setters panic if the service
/// has clones.
///
/// # Clone
///
/// Clones share the script and the record. A clone is not ready, even of one that is.
///
/// # Cancellation
///
/// A call that is dropped has been seen, and has used up its answer.
pub struct ScriptedService {
    script: Arc<Script>,
    polls_left: u32,
    permit: Option<OwnedSemaphorePermit>,
    acquiring: Option<Acquiring>,
}

type Acquiring = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send + Sync>>;

impl ScriptedService {
    /// Answers in this order.
    ///
    /// ```
    /// use tower_outbound::test_util::ScriptedService;
    ///
    /// let unavailable_once = ScriptedService::new([503, 200]);
    /// ```
    pub fn new(answers: impl IntoIterator<Item: Into<Answer>>) -> Self {
        let answers: Vec<_> = answers.into_iter().map(Into::into).collect();
        Self::answering(move |seen| match answers.get(seen.number - 1).or(answers.last()) {
            Some(answer) => answer.clone(),
            None => panic!("the script has no answer for {} {}", seen.head.method, seen.head.uri.path()),
        })
    }

    /// Answers each request by what it is; its body has not been read by then.
    ///
    /// ```
    /// use tower_outbound::test_util::ScriptedService;
    ///
    /// let picky = ScriptedService::answering(|seen| match seen.header("authorization") {
    ///     Some("Bearer s3cret") => 200.into(),
    ///     _ => 401.into(),
    /// });
    /// ```
    pub fn answering(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self { script: Arc::new(Script::new(answer)), polls_left: 0, permit: None, acquiring: None }
    }

    /// Is pending so many times before it is ready, each instance and each time anew.
    #[must_use]
    #[track_caller]
    pub fn with_pending_polls(mut self, polls: u32) -> Self {
        self.polls_left = polls;
        self.set(|script| script.pending_polls = polls)
    }

    /// Has so many permits: being ready takes one, which the call keeps until its answer, as in tower's
    /// `ConcurrencyLimit`. With 0 it never gets ready.
    #[must_use]
    #[track_caller]
    pub fn with_permits(self, permits: usize) -> Self {
        self.set(|script| script.set_permits(permits))
    }

    /// Never gets ready: `poll_ready` fails with this error.
    #[must_use]
    #[track_caller]
    pub fn with_readiness_error(self, make: impl Fn() -> BoxError + Send + Sync + 'static) -> Self {
        self.set(|script| script.unready = Some(Box::new(make)))
    }

    #[track_caller]
    fn set(mut self, change: impl FnOnce(&mut Script)) -> Self {
        let Some(script) = Arc::get_mut(&mut self.script) else {
            panic!("a scripted service is set up before it is cloned: its clones share the settings")
        };
        change(script);
        self
    }

    /// Every request so far, in the order of arrival.
    pub fn seen(&self) -> Vec<Seen> {
        self.script.seen().clone()
    }

    /// How many requests came.
    pub fn calls(&self) -> usize {
        self.script.seen().len()
    }

    /// When each request came.
    pub fn arrivals(&self) -> Arrivals {
        self.script.seen().iter().map(|seen| seen.at).collect()
    }

    /// How many permits are taken: one by each instance that is ready and each call that is under way.
    ///
    /// Nobody who only waits should hold one: a layer that sleeps in its back-off, say.
    pub fn permits_taken(&self) -> usize {
        self.script.permits_taken()
    }

    /// How many instances and calls of it there are: 1 where this is all that is left.
    pub fn instances(&self) -> usize {
        Arc::strong_count(&self.script)
    }
}

impl Clone for ScriptedService {
    fn clone(&self) -> Self {
        let script = Arc::clone(&self.script);
        Self { polls_left: script.pending_polls, script, permit: None, acquiring: None }
    }
}

impl fmt::Debug for ScriptedService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedService")
            .field("ready", &self.permit.is_some())
            .field("calls", &self.calls())
            .field("permits_taken", &self.permits_taken())
            .finish_non_exhaustive()
    }
}

impl<B> Service<Request<B>> for ScriptedService
where
    B: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if let Some(unready) = &self.script.unready {
            return Poll::Ready(Err(unready()));
        }
        if let Some(left) = self.polls_left.checked_sub(1) {
            self.polls_left = left;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.permit.is_none() {
            let permits = &self.script.permits;
            let acquire = || Box::pin(unconstrained(Arc::clone(permits).acquire_owned())) as Acquiring;
            let acquired = ready!(self.acquiring.get_or_insert_with(acquire).as_mut().poll(cx));
            (self.permit, self.acquiring) = (acquired.ok(), None);
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (head, body) = request.into_parts();
        let Some(permit) = self.permit.take() else {
            panic!(
                "called without having been polled ready: {} {}; before each call poll_ready of this very instance \
                 has to say that it is ready, and no clone takes over its readiness",
                head.method,
                head.uri.path(),
            )
        };
        let script = Arc::clone(&self.script);
        self.polls_left = self.script.pending_polls;
        let (place, answer) = self.script.answer(head);
        Box::pin(async move {
            let _permit = permit;
            match answer.reads {
                Reads::Nothing => drop(body),
                Reads::Keeps => script.keep(Box::new(body)),
                Reads::FirstFrame => _ = pin!(body).frame().await.transpose().map_err(Into::into)?,
                Reads::All => {
                    let read = body.collect().await.map_err(Into::into)?;
                    let trailers = read.trailers().cloned();
                    let seen = &mut script.seen()[place];
                    (seen.body, seen.trailers) = (Some(read.to_bytes()), trailers);
                }
            }
            answer.come().await
        })
    }
}
