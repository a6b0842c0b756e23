//! What comes after an attempt: another one, or why not.

use std::{error::Error as _, time::Duration};

use http::{
    Request, Response, StatusCode,
    header::{CONTENT_LENGTH, TRAILER},
    request,
};
use http_body::Body;

use super::{
    Outcome, RetryOverride,
    head::Head,
    layer::Policy,
    outcome,
    schedule::{Delay, Used},
};
use crate::{
    body::{Replay, ReplayBody},
    call::{self, CallContext, DelayReason, KeyReplaced, StopReason},
    clock,
    error::{Error, Reason, Refusal},
    policy::{
        self, Cause, Delivery, Spent, Verdict, feedback,
        grpc::{self, Code, Pushback},
    },
    telemetry::{self, Answered},
};

/// The longest that the rest of a failed answer's body is waited for.
const DRAIN_TIME: Duration = Duration::from_millis(100);

/// The request as it came, to make the next attempt of, and what the attempts so far have left.
pub(super) struct Kept<B> {
    head: Head,
    replay: Replay<B>,
    idempotent: bool,
    max_attempts: u32,
    /// All but the one whose key was refused and is replaced.
    pub(super) attempts: u32,
    /// Whether it may be sent once more with another key, if that was not done yet.
    rekey: bool,
    used: Used,
    /// Of the budget, by the attempt under way.
    pub(super) spent: Option<Spent>,
    /// Whether that goes back where the attempt is not sent: not once the server has had it, with another key.
    pub(super) refundable: bool,
    /// Of the attempt under way, in the call's report.
    pub(super) number: u32,
    /// What the last attempt that was called failed with, where that was not an answer.
    pub(super) failed: Option<Error>,
    /// Why the request cannot be sent.
    pub(super) rejected: Option<Error>,
    /// Whether the server may have processed any attempt.
    pub(super) maybe_processed: bool,
}

/// Another attempt: what to send, and after how long.
pub(super) struct Again<B> {
    pub(super) request: Request<ReplayBody<B>>,
    pub(super) delay: Duration,
    /// How long the answer may be drained.
    pub(super) drain: Duration,
    pub(super) reason: DelayReason,
}

impl<B> Kept<B> {
    /// Gives back what the attempt under way has spent, for it was not sent.
    pub(super) fn refund(&mut self, policy: &Policy) {
        if let (Some(budget), Some(spent)) = (&policy.budget, self.spent.take_if(|_| self.refundable)) {
            budget.give_back(spent);
        }
    }
}

impl<B: Body> Kept<B> {
    /// Keeps what a further attempt needs, and gives the first one.
    pub(super) fn of(request: Request<B>, policy: &Policy) -> (Self, Request<ReplayBody<B>>) {
        let (mut head, body) = request.into_parts();
        let announced = announced(&head, &body);
        let (body, replay) = ReplayBody::record(body, policy.replay_limit, announced);
        let own = head.extensions.get().copied().unwrap_or(RetryOverride::new());
        let key = policy.idempotency_key.as_ref().map(|key| key.put_on(&mut head, &policy.keys)).transpose();
        let (keyed, rejected) = match key {
            Ok(key) => (key == Some(true), None),
            Err(error) => (false, Some(error.into())),
        };
        let said = own.idempotent || policy.is_idempotent(&head);
        let idempotent = keyed || said || policy::is_idempotent(&head.method);
        let kept = Kept {
            head: Head::of(&mut head, policy),
            replay,
            idempotent,
            max_attempts: own.max_attempts.unwrap_or(policy.max_attempts),
            attempts: 0,
            rekey: !own.never,
            used: Used::default(),
            spent: None,
            refundable: false,
            number: 0,
            failed: None,
            rejected,
            maybe_processed: false,
        };
        // It goes itself, with the room that its map of fields has for those of the layers below, and the copy is kept.
        (kept, Request::from_parts(head, body))
    }

    /// Ends the attempt in the report. Returns the next attempt, or why there is none.
    pub(super) fn judge<R: Body>(
        &mut self,
        policy: &Policy,
        call: &CallContext,
        called: bool,
        result: &Result<Response<R>, Error>,
    ) -> Result<Again<B>, StopReason> {
        let (told, outcome, delivery, asked) = match result {
            Ok(response) => {
                let (status, headers) = (response.status(), response.headers());
                let asked = feedback::asked(status, headers, clock::wall);
                let outcome = Outcome::Answer { status, headers };
                (call::Outcome::Answer(status), outcome, Delivery::MaybeProcessed, asked)
            }
            Err(error) => {
                let (told, delivery) = outcome::of_error(error, called, self.replay.has_failed());
                (told, Outcome::Failure { error, delivery }, delivery, None)
            }
        };
        self.maybe_processed |= delivery == Delivery::MaybeProcessed;
        let headers = result.as_ref().ok().map(Response::headers);
        call.end_attempt(told, asked, headers);
        telemetry::attempt(call, result.as_ref().map(Answered::of));
        // What did not go out has burdened nobody.
        if !called {
            self.refund(policy);
        }
        let spent = self.spent.take();
        if let Some(wait) =
            result.as_ref().err().filter(|error| error.is_refusal()).and_then(Error::retry_after)
        {
            call.set_retry_after(wait);
        }
        let cause = match outcome {
            // Before any rule, for no rule and no server knows that there is another key. A request with a 401 has not been
            // applied (RFC 9110 §15.5.2), so that it does no harm whatever its method. gRPC says nothing of the kind.
            _ if self.rekey && has_other_key(result, self.idempotent) && !call.is_rekeyed() => None,
            Outcome::Failure { error, .. } if error.is_deadline() => return Err(StopReason::Deadline),
            _ => match self.verdict(policy, &outcome) {
                Verdict::Success => {
                    if let Some(budget) = &policy.budget {
                        budget.succeeded(spent);
                    }
                    return Err(StopReason::Success);
                }
                Verdict::Retry(cause) => Some(cause),
                Verdict::NotRetryable if failed_by_deadline(result) => return Err(StopReason::Deadline),
                Verdict::NotRetryable => return Err(StopReason::NotRetryable),
            },
        };
        if cause.is_some() && !policy::may_repeat(self.idempotent, delivery) {
            return Err(StopReason::NotIdempotent);
        }
        if cause.is_some() && self.attempts >= self.max_attempts {
            return Err(StopReason::Exhausted);
        }
        if let Some(asked) = asked.filter(|asked| *asked > policy.max_retry_after) {
            call.set_retry_after(asked);
            return Err(StopReason::AskedTooLong);
        }
        let (delay, reason) = match (cause, asked) {
            (Some(cause), _) => self.delay(policy, cause, asked).ok_or(StopReason::Exhausted)?,
            (None, Some(asked)) if !asked.is_zero() => (asked, DelayReason::Asked),
            (None, _) => (Duration::ZERO, DelayReason::KeyReplaced),
        };
        // After a key was replaced there is no back-off to drain the answer in, and its connection is worth as much.
        let drain = match result {
            Ok(response) if reason == DelayReason::KeyReplaced && !response.body().is_end_stream() => {
                DRAIN_TIME
            }
            _ => DRAIN_TIME.min(delay),
        };
        // What is drained can't be handed over any more, so that must not take the time of the attempt after it.
        let wait = delay.max(drain);
        if call.deadline().is_some_and(|deadline| clock::after(clock::now(), wait) >= deadline) {
            call.set_retry_after(wait);
            return Err(StopReason::Deadline);
        }
        let body = self.replay.body().ok_or(StopReason::NotReplayable)?;
        // Last, for what is given up here costs nothing.
        match (cause, &policy.budget) {
            (Some(cause), Some(budget)) => {
                self.spent = Some(budget.try_spend(cause).ok_or(StopReason::Budget)?);
                self.refundable = true;
            }
            (Some(_), None) => {}
            // The same attempt, paid for or not, with another key: only once, and it does not count.
            (None, _) => {
                call.set_rekeyed();
                self.spent = spent;
                self.refundable = false;
                self.attempts = self.attempts.saturating_sub(1);
            }
        }
        Ok(Again { request: Request::from_parts(self.head.again(call), body), delay, drain, reason })
    }

    fn verdict(&self, policy: &Policy, outcome: &Outcome<'_>) -> Verdict {
        match outcome {
            // The connection is the caller's from here on.
            Outcome::Answer { status: StatusCode::SWITCHING_PROTOCOLS, .. } => Verdict::Success,
            _ => policy.classify(self.head.shown(), outcome),
        }
    }

    /// Never shorter than what the server asked for: jitter is only added to that.
    fn delay(
        &mut self,
        policy: &Policy,
        cause: Cause,
        asked: Option<Duration>,
    ) -> Option<(Duration, DelayReason)> {
        let (retry, random) = (self.attempts.saturating_sub(1), policy.random.next());
        let Delay { own, spread } = policy.backoff(cause).next(&mut self.used, cause, retry, random)?;
        Some(match (asked, cause) {
            (Some(asked), _) if asked > own => (asked.saturating_add(spread), DelayReason::Asked),
            (_, Cause::Throttled) => (own, DelayReason::Throttled),
            (_, Cause::Transient) => (own, DelayReason::Transient),
        })
    }
}

/// Whether the server refused a key that is being replaced, of a request that can be sent once more.
fn has_other_key<R>(result: &Result<Response<R>, Error>, idempotent: bool) -> bool {
    let marked = |response: &&Response<R>| response.extensions().get::<KeyReplaced>().is_some();
    result.as_ref().ok().filter(marked).is_some_and(|response| {
        let headers = response.headers();
        let grpc = || idempotent && Code::in_head(headers) == Some(Code::UNAUTHENTICATED);
        // The server's wish that there be no other attempt is gRPC's own, and holds for this one, too.
        response.status() == StatusCode::UNAUTHORIZED
            || grpc() && grpc::pushback(headers) != Some(Pushback::Never)
    })
}

/// The length that goes before the body on the wire, if nothing follows it.
fn announced<B: Body>(head: &request::Parts, body: &B) -> Option<u64> {
    // Most have none, and need no look at the fields.
    if body.is_end_stream() || head.headers.contains_key(TRAILER) {
        return None;
    }
    let written = || head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    written().or(body.size_hint().exact())
}

/// Whether the limiter refused because the wait would have ended after the deadline.
fn failed_by_deadline<R>(result: &Result<Response<R>, Error>) -> bool {
    let refusal = result.as_ref().err().and_then(|error| error.source()?.downcast_ref::<Refusal>());
    refusal.is_some_and(|refusal| refusal.reason() == Reason::Deadline)
}
