//! The scripted service, which minds its callers, in a mood: what can go wrong in it goes wrong at a chosen time.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures_util::future::BoxFuture;
use http::{Request, Response};
use tower::Service;
use tower_outbound::{Body, BoxError, test_util};

use super::{
    probe::{Broken, Limited, ScriptedService, Seen, millis},
    slow::Slow,
};

/// What it panics with.
pub(crate) const PANIC: &str = "the probe panics";

/// Where something can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Ready,
    Call,
    Poll,
    /// In the body of the request, which is read below the layers.
    Request,
    /// In the body of the answer, which is read above them, or by one of them.
    Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    /// `poll_ready` fails.
    Fails,
    Panics(Place),
}

/// What clones of a moody service, its calls and their bodies share.
#[derive(Debug)]
pub(crate) struct Plan {
    mood: Mood,
    /// How often it goes well before.
    before: AtomicU32,
    /// How often it goes wrong then.
    times: AtomicU32,
    faults: Mutex<Vec<&'static str>>,
}

fn down(count: &AtomicU32) -> bool {
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
}

impl Plan {
    fn strikes(&self, mood: Mood) -> bool {
        self.mood == mood && !down(&self.before) && down(&self.times)
    }

    pub(crate) fn maybe_panics(&self, place: Place) {
        if self.strikes(Mood::Panics(place)) {
            panic!("{PANIC}");
        }
    }

    /// Whether it has gone wrong as often as it was to.
    pub(crate) fn is_over(&self) -> bool {
        self.times.load(Ordering::Relaxed) == 0
    }

    fn mind(&self, fault: &'static str) {
        self.faults.lock().unwrap().push(fault);
    }
}

/// Answers by the request's header `x-answers`, which has for each attempt a status and the milliseconds until it comes:
/// `503:20 200:5`.
pub(crate) struct Moody {
    pub(crate) plan: Arc<Plan>,
    pub(crate) probe: Limited,
    /// It has failed, or panicked, and is not to be used again. Its clones are fresh.
    dead: bool,
}

impl Moody {
    pub(crate) fn well() -> Self {
        Self::once_after(0, Mood::Well)
    }

    /// So often well before it goes wrong once.
    pub(crate) fn once_after(before: u32, mood: Mood) -> Self {
        Self::times(before, 1, mood)
    }

    pub(crate) fn times(before: u32, times: u32, mood: Mood) -> Self {
        let (before, times, faults) = (before.into(), times.into(), Mutex::default());
        let probe = Limited::over(ScriptedService::from_fn(answer)).with_pending_polls(1);
        Self { plan: Arc::new(Plan { mood, before, times, faults }), probe, dead: false }
    }

    pub(crate) fn over(mut self, change: impl FnOnce(Limited) -> Limited) -> Self {
        self.probe = change(self.probe);
        self
    }

    /// Where its callers have broken the contract.
    pub(crate) fn faults(&self) -> Vec<&'static str> {
        self.plan.faults.lock().unwrap().clone()
    }
}

fn answer(seen: &Seen) -> test_util::ScriptedResponse {
    let number = seen.attempt.unwrap_or(1).max(1) as usize;
    let answers: Vec<_> = seen.header("x-answers").unwrap().split(' ').collect();
    let (status, delay) = answers.get(number - 1).or(answers.last()).unwrap().split_once(':').unwrap();
    let answer = test_util::ScriptedResponse::status(status.parse().unwrap()).with_body("hello");
    answer.with_delay(millis(delay.parse().unwrap()))
}

impl Clone for Moody {
    fn clone(&self) -> Self {
        Self { plan: Arc::clone(&self.plan), probe: self.probe.clone(), dead: false }
    }
}

impl<B> Service<Request<B>> for Moody
where
    B: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.dead {
            self.plan.mind("polled again after it had failed");
        }
        self.dead = true;
        self.plan.maybe_panics(Place::Ready);
        if self.plan.strikes(Mood::Fails) {
            return Poll::Ready(Err(Broken.into()));
        }
        self.dead = false;
        Service::<Request<B>>::poll_ready(&mut self.probe, cx)
    }

    fn call(&mut self, request: Request<B>) -> Answering {
        if self.dead {
            self.plan.mind("called after it had failed");
        }
        self.plan.maybe_panics(Place::Call);
        Answering { future: Some(self.probe.call(request)), plan: Arc::clone(&self.plan) }
    }
}

/// Pending for ever after its end.
pub(crate) struct Answering {
    future: Option<BoxFuture<'static, Result<Response<Body>, BoxError>>>,
    plan: Arc<Plan>,
}

impl Future for Answering {
    type Output = Result<Response<Body>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else { return Poll::Pending };
        let answer = ready!(future.as_mut().poll(cx));
        self.future = None;
        self.plan.maybe_panics(Place::Poll);
        Poll::Ready(answer.map(|answer| answer.map(|_| Slow::body(&self.plan, Place::Answer))))
    }
}
