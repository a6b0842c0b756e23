use super::StackBuilder;
use crate::{
    attempt_span::AttemptSpanLayer,
    auth::KeyPlacement,
    config::InvalidConfig,
    limit::{AnyLimiter, RateLimitLayer, core::CoreSettings},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    stack::{BaseUrl, credential::CredentialSource, default_headers::DefaultHeadersLayer},
    timeout::TimeoutConfig,
};

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
            transport_layers: crate::stack::client_layers::ClientLayers(Vec::new()),
            #[cfg(feature = "client")]
            outer_layers: crate::stack::client_layers::ClientLayers(Vec::new()),
        })
    }
}
