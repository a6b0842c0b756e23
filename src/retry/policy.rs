use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Request};

use super::{AttemptResult, Classify, DefaultClassifier, classify::Rule};
use crate::{
    call::{CallContext, RequestHead},
    config::{InvalidConfig, text::Written},
    error::Error,
    headers,
    policy::{
        self, Budget, ExponentialBackoff, RetryDecision,
        backoff::scatter,
        dialect::Dialect,
        retry::{Delay, DelayReason, RetryRejected},
    },
    random::Random,
    telemetry::OrderWarning,
    uuid,
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
    /// The WARN event for a layer that is inside an auth layer.
    pub(super) order_warning: Arc<OrderWarning>,
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

/// A custom sequence of delays that replaces an [`ExponentialBackoff`].
///
/// A closure that returns an iterator implements this trait. [`adapter`](crate::adapter) shows a closure for the
/// `backon` crate. The feature `backoff` adapts the policies of the `backoff` crate.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::retry::RetryLayer;
///
/// // Waits 1 s, 2 s and 3 s, then returns the failure.
/// let layer = RetryLayer::new()
///     .with_max_attempts(u32::MAX)?
///     .with_custom_backoff(|| (1..=3).map(Duration::from_secs));
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a custom backoff",
    label = "not a `Backoff`",
    note = "a closure that returns an iterator of `Duration`s implements it: `|| [1, 2, 4].into_iter().map(Duration::from_secs)`; pass an `ExponentialBackoff` to `with_backoff`"
)]
pub trait Backoff: Send + Sync {
    /// Returns the delays of one call in order. When the iterator ends, the call makes no further attempt.
    fn delays(&self) -> Box<dyn Iterator<Item = Duration> + Send>;
}

impl<F, I> Backoff for F
where
    F: Fn() -> I + Send + Sync,
    I: Iterator<Item = Duration> + Send + 'static,
{
    fn delays(&self) -> Box<dyn Iterator<Item = Duration> + Send> {
        Box::new(self())
    }
}

/// The backoff that a retry layer uses for one kind of failure, transient or throttled.
#[derive(Clone)]
pub(super) enum AnyBackoff {
    Exponential(ExponentialBackoff),
    Custom(Arc<dyn Backoff>),
}

/// The remaining delays of a custom backoff in one call. `None` until the first delay is used. Boxed twice, because each
/// call stores two of them and few calls use one.
pub(super) type RemainingDelays = Option<Box<Box<dyn Iterator<Item = Duration> + Send>>>;

impl AnyBackoff {
    /// Returns the remaining delays of a call that has made this many retries. An exponential backoff stores no delays.
    pub(super) fn remaining(&self, retries: u32) -> RemainingDelays {
        let Self::Custom(backoff) = self else { return None };
        let mut delays = backoff.delays();
        delays.by_ref().take(retries as usize).for_each(drop);
        Some(Box::new(delays))
    }

    /// Returns the delay before retry number `retry`, counted from 0. Returns `None` after the end of a custom backoff.
    pub(super) fn next(&self, delays: &mut RemainingDelays, retry: u32, random: u64) -> Option<Delay> {
        match self {
            Self::Exponential(backoff) => {
                Some(Delay { own: backoff.delay(retry, random), spread: backoff.spread(retry, random) })
            }
            Self::Custom(backoff) => {
                let own = delays.get_or_insert_with(|| Box::new(backoff.delays())).next()?;
                // The jitter of a custom backoff is unknown, so a random time of up to half the backoff is added to a
                // requested delay.
                Some(Delay { own, spread: scatter(own / 2, random) })
            }
        }
    }
}

impl fmt::Debug for AnyBackoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exponential(backoff) => backoff.fmt(f),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

/// Adds a key by which the server recognizes a repeated request (draft-ietf-httpapi-idempotency-key).
///
/// - The key is a UUID in the header `Idempotency-Key`. Each call has a new key, and all its attempts send the same
///   one.
/// - Each request that a layer above the retry layer sends has a new key, also if that layer repeats a request. If the
///   server has processed the first one, it then processes the request twice. Set the header in the request instead.
/// - A key that the caller has set is kept.
/// - A request with an idempotent method gets no key, because it needs none.
/// - The layer marks its key as sensitive, so that HTTP/2 does not add it to its compression table. `Debug` of the
///   request's headers therefore does not show the key.
///
/// ```
/// use http::HeaderName;
/// use tower_outbound::retry::{IdempotencyKey, RetryLayer};
///
/// let key = IdempotencyKey::bare().with_header(HeaderName::from_static("x-request-token"));
/// let layer = RetryLayer::new().with_honoured_idempotency_key(key);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(expecting = "a table", default = "IdempotencyKey::bare", deny_unknown_fields)
)]
pub struct IdempotencyKey {
    header: Written<HeaderName>,
    quoted: bool,
}

impl IdempotencyKey {
    /// Sends the key without quotes, as most services expect it: `Idempotency-Key: 8e03978e-…`.
    pub fn bare() -> Self {
        Self { header: Written(HeaderName::from_static("idempotency-key")), quoted: false }
    }

    /// Sends the key as a quoted string, as the draft specifies: `Idempotency-Key: "8e03978e-…"`.
    pub fn quoted() -> Self {
        Self { quoted: true, ..Self::bare() }
    }

    pub(super) fn header(&self) -> &HeaderName {
        &self.header.0
    }

    /// Sets the name of the header.
    pub fn with_header(mut self, header: HeaderName) -> Self {
        self.header.0 = header;
        self
    }

    /// Adds a key unless the method is idempotent. Returns whether the request has a key.
    ///
    /// `repeats` is `true` if the call has sent the request before. It then sends the same key again, or none.
    pub(super) fn put_on<B>(
        &self,
        request: &mut Request<B>,
        call: &CallContext,
        repeats: bool,
        random: &Random,
    ) -> Result<bool, Error> {
        // An empty key cannot identify a request.
        let is_key = |key: &HeaderValue| key.as_bytes().iter().any(|byte| !b" \t\"".contains(byte));
        if request.headers().get(&self.header.0).is_some_and(is_key) {
            return Ok(true);
        }
        if policy::retry::is_idempotent(request.method()) {
            return Ok(false);
        }
        if repeats {
            let Some(key) = call.idempotency_key(&self.header.0) else { return Ok(false) };
            return headers::insert(request.headers_mut(), &self.header.0, key).map(|()| true);
        }
        let key = uuid::v7_header(random);
        let key = match self.quoted {
            true => HeaderValue::try_from([b"\"", key.as_bytes(), b"\""].concat()),
            false => Ok(key),
        };
        // Quotes, hexadecimal digits and hyphens always make a valid header value.
        let Ok(mut key) = key else { return Ok(false) };
        headers::mark_unique(&mut key);
        call.keep_idempotency_key(&self.header.0, &key);
        headers::insert(request.headers_mut(), &self.header.0, key).map(|()| true)
    }
}

/// Overrides the settings of the retry layer for one request. Insert a `RetryOverride` into the request's extensions.
///
/// To set the deadline of one request, use a [`Deadline`](crate::call::Deadline).
///
/// ```
/// use tower_outbound::retry::RetryOverride;
///
/// let mut request = http::Request::post("https://api.example.com/v1/searches").body(())?;
/// // This POST only reads.
/// request.extensions_mut().insert(RetryOverride::new().with_idempotent().with_max_attempts(5)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetryOverride {
    pub(super) max_attempts: Option<u32>,
    pub(super) idempotent: bool,
    /// If `true`, the request is also not resent with a new key after a 401.
    pub(super) never: bool,
}

impl RetryOverride {
    /// Creates overrides that change nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Disables retries. After a 401, the request is also not resent with a new key.
    pub fn without_retries(mut self) -> Self {
        self.max_attempts = Some(1);
        self.never = true;
        self
    }

    /// Sets the maximum number of attempts, including the first. A resend with a new key after a 401 does not count.
    ///
    /// # Errors
    ///
    /// Returns an error if the number is 0.
    pub fn with_max_attempts(mut self, max_attempts: u32) -> Result<Self, InvalidConfig> {
        self.max_attempts = Some(at_least_one(max_attempts)?);
        self.never = false;
        Ok(self)
    }

    /// Declares the request idempotent regardless of its method. The layer then also retries the request if the server
    /// may already have processed it.
    ///
    /// To declare all requests of one kind idempotent, use
    /// [`RetryLayer::with_idempotent`](super::RetryLayer::with_idempotent).
    pub fn with_idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }
}

pub(super) fn at_least_one(max_attempts: u32) -> Result<u32, InvalidConfig> {
    match max_attempts {
        0 => Err(InvalidConfig::of_setting("max attempts", "0", "at least 1: the first attempt counts")),
        _ => Ok(max_attempts),
    }
}
