//! The member of a pool to which the next attempt may go.

use std::time::Duration;

use super::attempts::Attempts;
use crate::{
    call::{Delivery, Outcome},
    clock,
    policy::{
        RetryDecision,
        retry::{Delay, Inputs, LastAttempt, RetryRejected},
    },
};

impl<B> Attempts<B> {
    /// Records whether the next attempt may go to another member of a pool. It may if no member may have processed the
    /// request, or if a replay is safe at any member. An idempotency key makes a replay safe at one member only.
    /// Returns when another member is expected to grant the permits.
    pub(super) fn release_member(&self, outcome: Outcome, verdict: LastAttempt) -> Option<Duration> {
        match verdict {
            LastAttempt::Classified(RetryDecision::Success) | LastAttempt::KeyReplaced => None,
            _ => {
                let counts_rejected = self.policy.retry_rejected == RetryRejected::Idempotent;
                let is_rejected = counts_rejected && outcome.delivery() == Delivery::Rejected;
                self.call.release_member(self.moves, self.maybe_processed || is_rejected)
            }
        }
    }

    /// Applies the delay that the server requested, or the backoff after a throttled response, only to the last member
    /// of the pool, if another one is expected to grant the permits earlier.
    pub(super) fn delay_member(
        &self,
        alternative: Duration,
        requested: Option<Duration>,
        verdict: LastAttempt,
        inputs: &mut Inputs,
    ) {
        let Delay { own, spread } = inputs.backoff.unwrap_or(Delay::NONE);
        let is_throttled = verdict == LastAttempt::Classified(RetryDecision::Throttled);
        let delay = match requested.filter(|requested| *requested > own) {
            Some(requested) => requested.saturating_add(spread),
            None if is_throttled && alternative < own => own,
            None => return,
        };
        if is_throttled {
            inputs.backoff = inputs.backoff.map(|_| Delay::NONE);
        }
        self.call.delay_member(clock::after(clock::now(), delay));
    }
}
