use std::{sync::Arc, time::Duration};

use http::Uri;

use self::credential::CredentialSource;
use super::{
    BaseUrl, Pool, StackLayer,
    default_headers::{DefaultHeadersLayer, SetHeaders},
    pool::RouteLayer,
};
use crate::{
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, KeyPlacement, Origin},
    config::{InvalidConfig, text::Written},
    limit::{AnyLimiter, RateLimitLayer, core::CoreSettings},
    policy::{Quota, dialect::Dialect},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::TimeoutConfig,
};

/// Configures the stack for one service. [`layer`](Self::layer) or [`client`](Self::client) then creates the stack.
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
/// // A layer over any service that takes absolute URIs, or a client: `builder.client()`.
/// let layer = builder.layer()?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// # Errors
///
/// No setter fails: see [which setters fail](crate::InvalidConfig#which-setters-fail). [`layer`](Self::layer) and
/// [`client`](Self::client) return the error of the first invalid value.
///
/// # Features
///
/// Some methods exist only with a [feature](crate#features):
///
/// | methods | feature |
/// |---|---|
/// | `client`, `client_with_service`, `client_with_transport`, `with_outer_layer`, `with_transport_layer` | `client` (default) |
/// | `with_decompression` | `decompression` |
/// | `from_config` | `serde` |
/// | `reqwest` | `reqwest` |
///
/// # Clone
///
/// All clones of a builder, and all layers and clients created from them, share one limiter, because a quota belongs to
/// a key. A clone with another quota or another credential has its own limiter. To share a limiter anyway, or between
/// two base URLs, use [`with_limiter`](Self::with_limiter).
#[derive(Debug, Clone)]
pub struct StackBuilder {
    name: Arc<str>,
    pub(crate) base: BaseUrl,
    credential: CredentialSource,
    placement: KeyPlacement,
    allowed: Vec<Origin>,
    pub(crate) headers: DefaultHeadersLayer,
    quotas: Vec<Quota>,
    limiter_settings: CoreSettings,
    limit: RateLimitLayer<AnyLimiter>,
    /// `true` if the caller has set the limiter, `false` if the builder uses its own.
    has_given_limiter: bool,
    endpoints: Option<endpoints::EndpointLimits>,
    pool: Option<Pool>,
    /// The first error that a setter found.
    invalid: Option<InvalidConfig>,
    retry: RetryLayer,
    /// `None` keeps the dialects of the retry layer and of the limit layer.
    dialect: Option<Dialect>,
    pub(crate) request_id: RequestIdLayer,
    attempt_span: AttemptSpanLayer,
    pub(crate) timeout: TimeoutConfig,
    #[cfg(feature = "client")]
    pub(crate) transport: crate::transport::TransportConfig,
    #[cfg(feature = "client")]
    pub(crate) transport_layers: super::client_layers::ClientLayers<super::TransportService>,
    #[cfg(feature = "client")]
    pub(crate) outer_layers: super::client_layers::ClientLayers<super::OuterService>,
    #[cfg(feature = "decompression")]
    pub(crate) decompresses: bool,
}

without_feature!(
    "decompression",
    "this method needs the feature `decompression` of tower-outbound",
    "enable it with `cargo add tower-outbound --features decompression`",
    StackBuilder { with_decompression() }
);
without_feature!(
    "reqwest",
    "this method needs the feature `reqwest` of tower-outbound",
    "enable it with `cargo add tower-outbound --features reqwest`",
    StackBuilder { reqwest(C) }
);

impl StackBuilder {
    /// Creates a builder from the base URL of a service.
    ///
    /// The builder has no default credential: call [`with_api_key_env`](Self::with_api_key_env), another setter of a
    /// credential, or [`without_credential`](Self::without_credential). Without a quota, an
    /// [adaptive](crate::limit::LocalLimiter::adaptive) limiter learns the rate that the server accepts. The default
    /// [name](Self::with_name) is the URL's host. A request with a body is sent with `content-type: application/json`,
    /// unless the request sets another `content-type`.
    ///
    /// # Errors
    ///
    /// Returns an error unless `base_url` is an absolute `http` or `https` URL with
    ///
    /// - no user info, query or fragment;
    /// - a name or an IP address as its host;
    /// - no port, or a port from 1 to 65535;
    /// - a path of visible ASCII characters, without empty segments and dot segments.
    pub fn new(base_url: impl AsRef<str>) -> Result<Self, InvalidConfig> {
        let base = BaseUrl::parse(base_url.as_ref())?;
        Ok(Self {
            name: base.uri.host().unwrap_or_default().into(),
            base,
            credential: CredentialSource::default(),
            placement: KeyPlacement::bearer(),
            allowed: Vec::new(),
            headers: DefaultHeadersLayer::default(),
            quotas: Vec::new(),
            limiter_settings: CoreSettings::DEFAULT,
            has_given_limiter: false,
            endpoints: None,
            pool: None,
            invalid: None,
            limit: RateLimitLayer::new(AnyLimiter::of_quotas(&[], CoreSettings::DEFAULT)),
            retry: RetryLayer::new(),
            dialect: None,
            request_id: RequestIdLayer::new(),
            attempt_span: AttemptSpanLayer::new(),
            timeout: TimeoutConfig::default(),
            #[cfg(feature = "client")]
            transport: crate::transport::TransportConfig::new(),
            #[cfg(feature = "client")]
            transport_layers: super::client_layers::ClientLayers(Vec::new()),
            #[cfg(feature = "client")]
            outer_layers: super::client_layers::ClientLayers(Vec::new()),
            #[cfg(feature = "decompression")]
            decompresses: false,
        })
    }
}

// Here, because the documentation lists the methods in the order of these modules and of the blocks.
mod credential;

mod limiter;

mod endpoints;

mod pool;

mod retry_rules;

mod headers;

#[cfg(feature = "client")]
mod running;

impl StackBuilder {
    /// Sets the name of the service in logs, spans and metrics. It must consist of 1 to 253 visible ASCII characters.
    /// The default is the host of the base URL.
    pub fn with_name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Allows the credential to be sent without TLS. Every host on the network path can then read it.
    pub fn with_plaintext(mut self) -> Self {
        self.base.origin = self.base.origin.with_plaintext();
        self
    }

    /// Replaces the retry layer, including what earlier setters such as
    /// [`with_max_attempts`](Self::with_max_attempts) have set.
    pub fn with_retry(mut self, retry: RetryLayer) -> Self {
        self.retry = retry;
        self
    }

    pub(crate) fn map_retry(mut self, change: impl FnOnce(RetryLayer) -> RetryLayer) -> Self {
        self.retry = change(self.retry);
        self
    }

    /// Replaces the request id layer, for example to change the format or the header of the id.
    /// [`with_name`](Self::with_name) still sets the service's name.
    pub fn with_request_id(mut self, request_id: RequestIdLayer) -> Self {
        self.request_id = request_id;
        self
    }

    /// Replaces the attempt span layer, for example to send the number of the attempt or a trace context.
    pub fn with_attempt_span(mut self, attempt_span: AttemptSpanLayer) -> Self {
        self.attempt_span = attempt_span;
        self
    }

    /// Limits the time of the whole call: queueing, attempts, backoff and response headers. The default is 60 s, so
    /// that a call can wait for the next window of a quota per minute. The timeout of a client's request replaces it.
    ///
    /// The time counts from `.await`, [`send`](crate::client::RequestBuilder::send) or
    /// [`execute`](crate::Client::execute), even if the future is first polled later. With an [outer
    /// layer](Self::with_outer_layer), it counts from when that layer passes the request to the stack.
    pub fn with_total_timeout(mut self, limit: Duration) -> Self {
        self.timeout.total = Written(limit);
        self
    }

    /// Limits the time of one attempt, from connecting to the response headers. The default is 10 s, or the total
    /// timeout if that is shorter. Three attempts and their backoff fit into the default total timeout.
    ///
    /// Each frame of the request's body restarts the time, so that it ends a stalled upload, but not a long one.
    pub fn with_attempt_timeout(mut self, limit: Duration) -> Self {
        self.timeout.attempt = Some(Written(limit));
        self
    }

    /// Limits how long the body of a response may stall while the caller reads it. A body that stalls longer returns an
    /// error with [`is_timeout`](crate::Error::is_timeout).
    ///
    /// The default is no limit, because an event stream may be silent for a long time. The total timeout does not cover
    /// the body.
    pub fn with_body_idle_timeout(mut self, limit: Duration) -> Self {
        self.timeout.body_idle = Some(Written(limit));
        self
    }

    /// Creates the stack as a layer, for a custom service that takes absolute URIs.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the [name](Self::with_name) is not 1 to 253 visible ASCII characters;
    /// - no setter of a credential was called;
    /// - there is no key, because its environment variable is not set or its file contains none. If the service needs
    ///   no key, use [`without_credential`](Self::without_credential);
    /// - the key would be sent without TLS;
    /// - a [default header](Self::with_header) is invalid, frames requests or contains a credential;
    /// - the header of the request id, the attempt or the idempotency key frames requests, contains a credential or is
    ///   also set to another value;
    /// - [`with_quota`](Self::with_quota) or a setter of the builder's own limiter was called after
    ///   [`with_limiter`](Self::with_limiter);
    /// - a setting of the builder's own limiter is set, and the limiter of [`with_limiter`](Self::with_limiter) does
    ///   not have it;
    /// - a timeout is zero, or the attempt's timeout is longer than the total timeout;
    /// - `with_transport_layer` or `with_outer_layer` was called, because both add layers to a client.
    pub fn layer(&self) -> Result<StackLayer, InvalidConfig> {
        #[cfg(feature = "client")]
        {
            let expected = "none, because only a client has a transport. Add the layer to the custom service";
            self.transport_layers.expect_none("transport layers", expected)?;
            let expected = "none, because only a client has them. Add the layer above the layer of the stack";
            self.outer_layers.expect_none("outer layers", expected)?;
        }
        self.whole_layer()
    }

    /// Creates the stack, to which the client adds the layers of its transport.
    pub(crate) fn whole_layer(&self) -> Result<StackLayer, InvalidConfig> {
        self.invalid.clone().map_or(Ok(()), Err)?;
        self.check_name()?;
        let in_timeout = |error: InvalidConfig| error.at("timeout");
        let total_timeout = self.timeout.total_layer().map_err(in_timeout)?;
        let attempt_timeout = self.timeout.attempt_layer().map_err(in_timeout)?;
        let (origin, has_pool) = (&self.base.origin, self.pool.is_some());
        let credential = match &self.pool {
            None => self.credential.create(&self.placement),
            Some(pool) => pool.credential(&self.placement, origin.is_plaintext()),
        };
        let is_key = matches!(
            self.credential,
            CredentialSource::Env(_) | CredentialSource::File(..) | CredentialSource::Keys(_)
        );
        let key_header = self.placement.header_name().filter(|_| has_pool || is_key);
        let set = SetHeaders {
            request_id: self.request_id.header(),
            attempt: self.attempt_span.header(),
            idempotency_key: self.retry.idempotency_key_header(),
        };
        self.headers.check(key_header, &set)?;
        self.check_pool()?;
        self.check_limiter_settings()?;
        const IN_FILE: &str =
            "https, a loopback host or allow_plaintext = true, because a credential is sent to it";
        let in_base = |error: InvalidConfig| error.at("base_url").expecting_in_file(IN_FILE);
        let auth = AuthLayer::of(credential?, origin.clone()).map_err(in_base)?;
        let auth = self.allowed.iter().cloned().try_fold(auth, AuthLayer::with_allowed_origin);
        let auth = auth.map_err(|error| error.at("allowed_origins"))?;
        let (mut retry, mut rate_limit) = (self.retry.clone(), self.joint_limit()?);
        if let Some(dialect) = &self.dialect {
            retry = retry.with_dialect(dialect.clone());
            rate_limit = rate_limit.with_dialect(dialect.clone());
        }
        let route = self.pool.clone().map_or_else(RouteLayer::none, |pool| {
            RouteLayer::new(self.base.clone(), pool, rate_limit.dialect().clone())
        });
        let origin = origin.clone();
        Ok(StackLayer {
            body_idle_timeout: self.timeout.body_idle_layer().map_err(in_timeout)?,
            request_id: self.request_id.clone().with_service(Arc::clone(&self.name)),
            default_headers: self.headers.clone(),
            total_timeout,
            retry,
            rate_limit: rate_limit.or_feedback_from(move |head| {
                has_pool || head.uri.authority().is_none() || origin.covers(head.uri)
            }),
            route,
            attempt_span: self.attempt_span.clone(),
            auth,
            attempt_timeout,
        })
    }

    /// Returns the name of the service in logs, spans and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the base URL. All requests of a client stay below it.
    pub fn base_url(&self) -> &Uri {
        &self.base.uri
    }

    fn check_name(&self) -> Result<(), InvalidConfig> {
        // Visible ASCII characters appear in logs and metrics without escapes. A host name has at most 253 characters.
        let valid =
            (1..=253).contains(&self.name.len()) && self.name.bytes().all(|byte| byte.is_ascii_graphic());
        let invalid = || {
            InvalidConfig::of_setting(
                "name",
                self.name.escape_debug().to_string(),
                "1 to 253 visible ascii characters",
            )
        };
        valid.then_some(()).ok_or_else(invalid)
    }
}
