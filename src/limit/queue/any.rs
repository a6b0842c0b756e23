//! The interface of a queue, regardless of its algorithm.

use std::{sync::Arc, task::Waker};

use tokio::runtime;

use super::waiter::Waiter;
use crate::{
    clock::Instant,
    error::Refusal,
    limit::{permit::PermitIssuer, permit_request::PermitRequest},
};

pub(super) enum Joined {
    /// The permits were granted at this time.
    Granted(Instant),
    /// The request is queued. If `sleeps`, the caller must not visit the waiter before it is woken. If its permits are
    /// already granted, it only yields once to earlier waiters.
    Queued { waiter: Arc<Waiter>, sleeps: bool, unchecked: bool },
}

pub(super) enum Standing {
    /// The permits were granted. The waiter's task learned of the grant at this time.
    Granted(Instant),
    /// The waiter must be visited again when it is woken. As the head, it must also be visited at `poll_at` to take its
    /// permits. If `unchecked`, no task of the current runtime [checks](super::checker) the queue.
    Waiting { poll_at: Option<Instant>, unchecked: bool },
}

/// The operations of a queue that its waiters need, regardless of its algorithm.
pub(super) trait AnyQueue: PermitIssuer {
    /// Takes the permits now or joins the queue. Returns a refusal if the wait would exceed the request's bounds. Never
    /// joins the queue without a waker.
    fn join(&self, request: &PermitRequest, waker: Option<&Waker>) -> Result<Joined, Refusal>;

    /// Returns the state of a waiter. If the waiter is the head, first grants the available permits to it and to the
    /// waiters behind it.
    fn visit(&self, waiter: &Arc<Waiter>, waker: &Waker) -> Result<Standing, Refusal>;

    /// Starts the task of the current runtime that checks the queue for absent waiters, unless there is one.
    fn start_checks(self: Arc<Self>);

    /// Skips absent waiters. Returns the time of the next check. Returns `None` and forgets the runtime if no request is
    /// queued.
    fn check(&self, runtime: runtime::Id) -> Option<Instant>;

    fn stop_checks(&self, runtime: runtime::Id);

    /// Removes a waiter from the queue. Permits that were already granted to it are wasted.
    fn leave(&self, waiter: &Waiter);

    fn issuer(self: Arc<Self>) -> Arc<dyn PermitIssuer>;
}
