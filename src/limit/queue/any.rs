//! The interface of a queue, regardless of its algorithm.

use std::{sync::Arc, task::Waker};

use super::waiter::Waiter;
use crate::{
    clock::Instant,
    error::Refusal,
    limit::{permit::PermitIssuer, permit_request::PermitRequest},
};

pub(super) enum Joined {
    /// The permits were granted at this time.
    Granted(Instant),
    /// The request is queued. If `sleeps`, its waiter need not be visited before it is woken. A waiter whose permits are
    /// already granted only yields once to the waiters that were woken before.
    Queued { waiter: Arc<Waiter>, sleeps: bool },
}

pub(super) enum Standing {
    /// The permits were granted. The waiter's task learned of the grant at this time.
    Granted(Instant),
    /// The waiter must be visited again when it is woken, and also at this time: as the head to take its permits,
    /// otherwise to check whether the head was polled.
    Waiting(Option<Instant>),
}

/// The operations of a queue that its waiters need, regardless of its algorithm.
pub(super) trait AnyQueue: PermitIssuer {
    /// Takes the permits now or joins the queue. Returns a refusal if the wait would exceed the request's bounds. Never
    /// joins the queue without a waker.
    fn join(&self, request: &PermitRequest, waker: Option<&Waker>) -> Result<Joined, Refusal>;

    /// Returns the state of a waiter. If the waiter is the head, first grants the available permits to it and to the
    /// waiters behind it.
    fn visit(&self, waiter: &Arc<Waiter>, waker: &Waker) -> Result<Standing, Refusal>;

    /// Removes a waiter from the queue. Permits that were already granted to it are wasted.
    fn leave(&self, waiter: &Waiter);

    fn issuer(self: Arc<Self>) -> Arc<dyn PermitIssuer>;
}
