mod credential;
mod headers;
mod retry_rules;

use std::{fmt, sync::Arc, time::Duration};

use http::Uri;

use super::{BaseUrl, StackLayer, credential::Credential, default_headers::DefaultHeadersLayer};
use crate::{
    attempt_span::AttemptSpanLayer,
    auth::{KeyPlacement, Origin},
    config::InvalidConfig,
    config::text::Written,
    limit::{AnyLimiter, RateLimitLayer, SelectLimiter, TokenBucket},
    policy::Quota,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::TimeoutConfig,
};

/// Configures the stack for one service. Setters change it, and [`layer`](Self::layer) or [`client`](Self::client) makes
/// the stack.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{ApiKey, Quota, stack::StackBuilder};
///
/// let builder = StackBuilder::new("https://api.example.com/v2")?
///     .with_api_key(ApiKey::new("s3cret")?)
///     .with_quota(Quota::per_minute(300)?)
///     .with_total_timeout(Duration::from_secs(30));
///
/// // A layer over any service that takes absolute URIs, or a ready client: `builder.client()`.
/// let layer = builder.layer()?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// # Clone
///
/// Clones share one limiter, and so do all layers and clients made from them, because a quota belongs to a key.
/// [`with_quota`](Self::with_quota) and [`with_limiter`](Self::with_limiter) replace it.
#[derive(Debug, Clone)]
pub struct StackBuilder {
    name: Arc<str>,
    pub(crate) base: BaseUrl,
    credential: Credential,
    placement: KeyPlacement,
    allowed: Vec<Origin>,
    pub(crate) headers: DefaultHeadersLayer,
    quotas: Vec<Quota>,
    limit: RateLimitLayer<AnyLimiter>,
    retry: RetryLayer,
    pub(crate) request_id: RequestIdLayer,
    attempt_span: AttemptSpanLayer,
    pub(crate) timeout: TimeoutConfig,
}

impl StackBuilder {
    /// Starts from the base URL of a service.
    ///
    /// The default is no quota, and a bearer key from the environment variable `API_KEY`. A request with a body gets
    /// `content-type: application/json`, unless it has a `content-type`. The [name](Self::with_name) is the URL's host.
    ///
    /// # Errors
    ///
    /// Returns an error unless `base_url` is an absolute `http` or `https` URL with
    ///
    /// - no user info, query or fragment;
    /// - a name or an IP address as its host;
    /// - no port, or one from 1 to 65535;
    /// - a path of visible ASCII characters, without empty segments and dot segments.
    pub fn new(base_url: &str) -> Result<Self, InvalidConfig> {
        let base = BaseUrl::parse(base_url)?;
        Ok(Self {
            name: base.uri.host().unwrap_or_default().into(),
            base,
            credential: Credential::Environment("API_KEY".into()),
            placement: KeyPlacement::bearer(),
            allowed: Vec::new(),
            headers: DefaultHeadersLayer::default(),
            quotas: Vec::new(),
            limit: RateLimitLayer::new(AnyLimiter::new(TokenBucket::unlimited())),
            retry: RetryLayer::new(),
            request_id: RequestIdLayer::new(),
            attempt_span: AttemptSpanLayer::new(),
            timeout: TimeoutConfig::default(),
        })
    }

    /// Sets the name: `service` in logs, spans and metrics, of 1 to 253 visible ASCII characters. The host of the base URL
    /// by default.
    pub fn with_name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Allows the credential to be sent without TLS, so that everybody on the way can read it.
    pub fn with_plaintext(mut self) -> Self {
        self.base.origin = self.base.origin.with_plaintext();
        self
    }

    /// Sets the quota, and starts a new limiter for it, a [`TokenBucket`].
    pub fn with_quota(self, quota: Quota) -> Self {
        self.with_quotas([quota])
    }

    /// Sets several quotas that hold at once, such as 10 per second and 100 per minute, and starts a new
    /// [`TokenBucket`] for them. Without any quota only server limits apply.
    ///
    /// Replaces a limiter given to [`with_limiter`](Self::with_limiter) before.
    pub fn with_quotas(mut self, quotas: impl IntoIterator<Item = Quota>) -> Self {
        self.quotas = quotas.into_iter().collect();
        self.limit =
            self.limit.with_limiter(AnyLimiter::new(TokenBucket::all_of(self.quotas.iter().copied())));
        self
    }

    /// Replaces the limiter: by a [`SlidingWindow`](crate::limit::SlidingWindow), a limiter that other clients share,
    /// one for each key ([`KeyedBucket`](crate::limit::KeyedBucket)), or a custom one.
    ///
    /// - The limiter's own quotas hold. [`quotas`](Self::quotas) still returns the preset's.
    /// - The bounds of the [wait](Self::with_limit) stay, and the limiter receives the server's rate-limit headers.
    /// - Of this and [`with_quotas`](Self::with_quotas), the later call wins.
    /// - `Debug` of the builder and of its layers shows `Debug` of the limiter. That of a custom one must not contain a secret.
    ///
    /// ```
    /// use tower_outbound::{limit::SlidingWindow, preset};
    ///
    /// // For a server that is known to count a sliding window: the whole quota may leave at once.
    /// let rates = preset::currency_rates("https://rates.example.com")?;
    /// let window = SlidingWindow::all_of(rates.quotas().iter().copied());
    /// let rates = rates.with_limiter(window);
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn with_limiter<L>(mut self, limiter: L) -> Self
    where
        L: SelectLimiter + fmt::Debug + Send + Sync + 'static,
    {
        self.limit = self.limit.with_limiter(AnyLimiter::new(limiter));
        self
    }

    /// Changes the bounds of the wait for a permit: the longest wait and the longest queue.
    pub fn with_limit(
        mut self,
        change: impl FnOnce(RateLimitLayer<AnyLimiter>) -> RateLimitLayer<AnyLimiter>,
    ) -> Self {
        self.limit = change(self.limit);
        self
    }

    /// Replaces the retry layer.
    pub fn with_retry(mut self, retry: RetryLayer) -> Self {
        self.retry = retry;
        self
    }

    pub(crate) fn map_retry(mut self, change: impl FnOnce(RetryLayer) -> RetryLayer) -> Self {
        self.retry = change(self.retry);
        self
    }

    /// Replaces the request id layer, for another form or header of the id. [`with_name`](Self::with_name) sets its name of
    /// the service.
    pub fn with_request_id(mut self, request_id: RequestIdLayer) -> Self {
        self.request_id = request_id;
        self
    }

    /// Replaces the attempt span layer, for example to send the attempt's number or a trace context.
    pub fn with_attempt_span(mut self, attempt_span: AttemptSpanLayer) -> Self {
        self.attempt_span = attempt_span;
        self
    }

    /// Limits the whole call: queueing, attempts, backoff and response headers. 60 s by default, one window of a quota
    /// per minute, so that a call can wait for the next window.
    pub fn with_total_timeout(mut self, limit: Duration) -> Self {
        self.timeout.total = Written(limit);
        self
    }

    /// Limits one attempt, from the connection to the response headers. 10 s by default, or the total timeout if that is
    /// shorter. Three attempts and their backoff fit into the default total timeout.
    pub fn with_attempt_timeout(mut self, limit: Duration) -> Self {
        self.timeout.attempt = Some(Written(limit));
        self
    }

    /// Limits how long a response's body may stall while it is read. After that time the body returns an error that [is
    /// a timeout](crate::Error::is_timeout).
    ///
    /// Unlimited by default, because an event stream may be silent for long. The total timeout does not cover the body.
    pub fn with_body_idle_timeout(mut self, limit: Duration) -> Self {
        self.timeout.body_idle = Some(Written(limit));
        self
    }

    /// Makes the stack as a layer, over a custom service that takes absolute URIs.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the [name](Self::with_name) is not 1 to 253 visible ASCII characters;
    /// - there is no key: its environment variable is not set, or its file holds none. A service that needs no key is
    ///   [`without_credential`](Self::without_credential);
    /// - the key would travel without TLS;
    /// - a [default header](Self::with_header) frames requests or holds a credential;
    /// - a timeout is zero, or the attempt's timeout is longer than the total timeout.
    pub fn layer(&self) -> Result<StackLayer, InvalidConfig> {
        self.check_name()?;
        let (total, attempt_timeout) = (self.timeout.total_layer()?, self.timeout.attempt_layer()?);
        let key_header = self.placement.header_name().filter(|_| self.credential.is_key());
        self.headers.check(key_header, self.request_id.header())?;
        let auth = self.credential.layer(&self.placement, &self.base.origin, &self.allowed)?;
        let origin = self.base.origin.clone();
        Ok(StackLayer {
            body_idle: self.timeout.body_idle_layer()?,
            request_id: self.request_id.clone().with_service(Arc::clone(&self.name)),
            headers: self.headers.clone(),
            total,
            retry: self.retry.clone(),
            limit: self.limit.clone().with_feedback_from(move |head| origin.covers(head.uri)),
            attempt_span: self.attempt_span.clone(),
            auth,
            attempt_timeout,
        })
    }

    /// Returns the name: `service` in logs, spans and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the URL that all requests of a client stay below.
    pub fn base_url(&self) -> &Uri {
        &self.base.uri
    }

    /// Returns the service's quotas, which hold at once: the preset's own, or those last given to
    /// [`with_quotas`](Self::with_quotas). Not those of a limiter given to [`with_limiter`](Self::with_limiter), which
    /// the builder does not know.
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas
    }

    /// Returns the limiter, for its snapshot: a [`TokenBucket`], or the limiter given to
    /// [`with_limiter`](Self::with_limiter).
    ///
    /// ```
    /// use tower_outbound::{limit::TokenBucket, preset};
    ///
    /// let rates = preset::currency_rates("https://rates.example.com")?;
    /// let bucket = rates.limiter().downcast_ref::<TokenBucket>().ok_or("another limiter")?;
    /// assert_eq!(bucket.snapshot().available, 10);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn limiter(&self) -> &AnyLimiter {
        self.limit.limiter()
    }
    fn check_name(&self) -> Result<(), InvalidConfig> {
        // Logs and metrics show these characters as they are. The longest host has 253.
        let valid =
            (1..=253).contains(&self.name.len()) && self.name.bytes().all(|byte| byte.is_ascii_graphic());
        let invalid = || {
            InvalidConfig::new(
                "name",
                self.name.escape_debug().to_string(),
                "1 to 253 visible ascii characters",
            )
        };
        valid.then_some(()).ok_or_else(invalid)
    }
}
