use std::{fmt, sync::Arc, time::Duration};

use http::Request;

use super::{
    AttemptResult, Classify, DefaultClassifier, IdempotencyKey, backoff::AnyBackoff, classify::Rule,
};
use crate::{
    call::RequestHead,
    policy::{
        Budget, RetryDecision,
        dialect::Dialect,
        retry::{DelayReason, RetryRejected},
    },
    random::Random,
};

/// The settings that all services of one retry layer share.
#[derive(Clone)]
pub(super) struct Policy {
    pub(super) max_attempts: u32,
    /// `None` means [`DefaultClassifier`], which does not read the request.
    pub(super) classify: Option<Arc<dyn Classify>>,
    /// The rules in the order in which they were added. The layer evaluates the last rule first.
    pub(super) rules: Vec<Rule>,
    pub(super) idempotency_key: Option<IdempotencyKey>,
    pub(super) idempotent: Option<Arc<IsIdempotent>>,
    pub(super) budget: Option<Budget>,
    pub(super) retry_rejected: RetryRejected,
    pub(super) dialect: Dialect,
    pub(super) max_retry_after: Duration,
    pub(super) replay_limit: usize,
    pub(super) random: Arc<Random>,
    /// The random source of idempotency keys. It is never seeded, so that no key is repeated.
    pub(super) keys: Arc<Random>,
    pub(super) transient: AnyBackoff,
    pub(super) throttled: AnyBackoff,
}

type IsIdempotent = dyn Fn(RequestHead<'_>) -> bool + Send + Sync;

impl Policy {
    /// Returns whether the layer declares this request idempotent.
    pub(super) fn is_idempotent<B>(&self, request: &Request<B>) -> bool {
        self.idempotent.as_ref().is_some_and(|rule| rule(RequestHead::of(request)))
    }

    /// Returns whether a classifier or a condition needs the head of the request.
    pub(super) fn shows_requests(&self) -> bool {
        self.classify.is_some() || self.rules.iter().any(|rule| matches!(rule, Rule::If(_)))
    }

    /// Returns the backoff for a retry with this reason.
    pub(super) fn backoff_after(&self, reason: DelayReason) -> &AnyBackoff {
        match reason {
            DelayReason::Throttled => &self.throttled,
            _ => &self.transient,
        }
    }

    /// Applies the rules, then the classifier. `head` is `Some` if [`shows_requests`](Self::shows_requests) returns
    /// `true`.
    pub(super) fn classify(
        &self,
        head: Option<RequestHead<'_>>,
        attempt: &AttemptResult<'_>,
    ) -> RetryDecision {
        let ruled = self.rules.iter().rev().find_map(|rule| rule.decide(head, attempt));
        ruled.unwrap_or_else(|| match (&self.classify, head) {
            (Some(classify), Some(head)) => classify.classify(head, attempt),
            _ => DefaultClassifier.decide(attempt),
        })
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("max_attempts", &self.max_attempts)
            .field("rules", &self.rules)
            .field("idempotency_key", &self.idempotency_key)
            .field("budget", &self.budget)
            .field("retry_rejected", &self.retry_rejected)
            .field("transient", &self.transient)
            .field("throttled", &self.throttled)
            .field("dialect", &self.dialect)
            .field("max_retry_after", &self.max_retry_after)
            .field("replay_limit", &self.replay_limit)
            .finish_non_exhaustive()
    }
}
