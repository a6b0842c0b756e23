use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Name;
use crate::{
    attempt_span::AttemptSpanLayer,
    auth::{ApiKey, KeyPlacement, Origin},
    config::{
        InvalidConfig,
        text::{Checked, InlineKey, List},
    },
    limit::{DialectConfig, RateLimitConfig, RateLimitLayer, core::CoreSettings},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    stack::{BaseUrl, StackBuilder, StackLayer},
    timeout::TimeoutConfig,
};
#[cfg(feature = "client")]
use crate::{client::Client, transport::TransportConfig};

/// The configuration of one service, for files and the environment: see [the guide](super#configuration-from-files).
///
/// | field | default |
/// |---|---|
/// | `preset` | `custom`. Other values are the names of the [presets](super::ALL) |
/// | `name` | that of the preset, otherwise the host of the URL. The value of `service` in logs, spans and metrics |
/// | `base_url` | required |
/// | `allow_plaintext` | `false`: `true` sends the key without TLS, so that every host on the network path can read it |
/// | `allowed_origins` | `[]`: other origins to which the key may be sent, over TLS or on loopback |
/// | `api_key` | none: the key itself. Never serialised |
/// | `api_key_env` | that of the preset. The environment variable that contains the key |
/// | `api_key_file` | none: the file that contains the key. It is read again every 5 s and after a 401 |
/// | `no_credential` | `false`: `true` sends no key, for example to a server that only requires a client certificate |
/// | `key_placement` | `bearer`. Other values are `header:NAME`, `query:NAME` and `basic:USER` |
/// | `limit` | [`RateLimitConfig`] |
/// | `dialect` | [`DialectConfig`] |
/// | `retry` | [`RetryLayer`] |
/// | `timeout` | [`TimeoutConfig`] |
/// | `request_id` | [`RequestIdLayer`] |
/// | `attempt_span` | [`AttemptSpanLayer`] |
/// | `transport` | [`TransportConfig`](crate::transport::TransportConfig) |
/// | `decompression` | `false`: `true` decompresses the responses of a client. Needs the feature `decompression` |
///
/// At most one of `api_key`, `api_key_env`, `api_key_file` and `no_credential` may be given.
///
/// # Features
///
/// The methods `client` and `reconfigure` and the field `transport` need the [feature](crate#features) `client`.
///
/// # Logging the error of a parser
///
/// `Display` of a `toml` error quotes a line of the file. That line may contain a key, for example in an inline table
/// that also has an unknown field. Log `error.message()` instead.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(expecting = "a table", default, deny_unknown_fields)]
pub struct StackConfig {
    preset: Name,
    name: Option<String>,
    base_url: Option<Checked<BaseUrl>>,
    allow_plaintext: bool,
    allowed_origins: List<Checked<Origin>>,
    #[serde(skip_serializing)]
    api_key: Option<InlineKey>,
    api_key_env: Option<String>,
    api_key_file: Option<PathBuf>,
    no_credential: bool,
    key_placement: Checked<KeyPlacement>,
    limit: RateLimitConfig,
    dialect: DialectConfig,
    retry: RetryLayer,
    timeout: TimeoutConfig,
    request_id: RequestIdLayer,
    attempt_span: AttemptSpanLayer,
    #[cfg(feature = "client")]
    transport: TransportConfig,
    #[cfg(not(feature = "client"))]
    #[serde(skip_serializing, rename = "transport")]
    _transport: WithoutClient,
    #[cfg(feature = "decompression")]
    decompression: bool,
    #[cfg(not(feature = "decompression"))]
    #[serde(skip_serializing, rename = "decompression")]
    _decompression: WithoutDecompression,
}

field_of_feature!("client", WithoutClient);
field_of_feature!("decompression", WithoutDecompression);

impl StackBuilder {
    /// Creates a builder from a configuration. Use the builder for settings that need code.
    ///
    /// # Clone
    ///
    /// Each builder has its own limiter. Builders that are created from the same configuration, or from clones of that
    /// configuration, share one retry budget.
    ///
    /// # Errors
    ///
    /// Returns an error with the [path](InvalidConfig::path) of the field if
    ///
    /// - there is no base URL,
    /// - the base URL, an allowed origin or the key placement is invalid,
    /// - more than one of `api_key`, `api_key_env`, `api_key_file` and `no_credential` is given,
    /// - `api_key` is invalid,
    /// - the dialect is invalid.
    pub fn from_config(config: &StackConfig) -> Result<Self, InvalidConfig> {
        let url = config.base_url.as_ref().map_or(Ok(String::new()), |url| Ok(url.get()?.uri.to_string()));
        let mut builder =
            url.and_then(|url| config.preset.builder(url)).map_err(|error| error.within("base_url"))?;
        if let Some(name) = &config.name {
            builder = builder.with_name(name.as_str());
        }
        if config.allow_plaintext {
            builder = builder.with_plaintext();
        }
        for origin in &config.allowed_origins.0 {
            let origin = origin.get().map_err(|error| error.within("allowed_origins"))?;
            builder = builder.with_allowed_origin(origin.clone());
        }
        let limit = config.limit.clone().or_quotas(builder.quotas());
        builder = builder
            .with_own_limiter(limit.quotas().iter().copied(), limit.over(CoreSettings::DEFAULT))
            .with_limit(|layer| RateLimitLayer::from_config(layer.limiter().clone(), &limit))
            .with_retry(config.retry.clone())
            .with_request_id(config.request_id.clone())
            .with_attempt_span(config.attempt_span.clone());
        builder.timeout = config.timeout;
        #[cfg(feature = "client")]
        builder.transport.clone_from(&config.transport);
        let dialect = config.dialect.dialect().map_err(|error| error.within("dialect"))?;
        if !dialect.is_empty() {
            builder = builder.with_dialect(dialect);
        }
        #[cfg(feature = "decompression")]
        if config.decompression {
            builder = builder.with_decompression();
        }
        config.with_credential(builder)
    }
}

impl StackConfig {
    /// Creates the whole stack as a layer: see [`StackBuilder::layer`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`StackBuilder::from_config`] and [`StackBuilder::layer`], with the path of the
    /// field.
    pub fn layer(&self) -> Result<StackLayer, InvalidConfig> {
        #[cfg(feature = "decompression")]
        if self.decompression {
            let expected = "false, because only a client decompresses. Add a layer to the custom service";
            return Err(InvalidConfig::of_setting("decompression", "true", expected).in_file());
        }
        StackBuilder::from_config(self)?.layer().map_err(InvalidConfig::in_file)
    }

    /// Creates a client over the configured transport: see [`StackBuilder::client`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`layer`](Self::layer) and [`StackBuilder::client`], with the path of the field.
    #[cfg(feature = "client")]
    pub fn client(&self) -> Result<Client, InvalidConfig> {
        StackBuilder::from_config(self)?.client().map_err(InvalidConfig::in_file)
    }

    /// Changes a running client to this configuration: see [`Client::reconfigure`]. A changed `transport` or
    /// `decompression` is an error.
    ///
    /// Use it for a client from [`client`](Self::client). Hooks that code has added to a builder are lost. To keep
    /// hooks and layers, pass a builder that has them to [`Client::reconfigure`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`StackBuilder::from_config`] and [`Client::reconfigure`], with the path of the
    /// field. The client then keeps all its settings.
    #[cfg(feature = "client")]
    pub fn reconfigure(&self, client: &Client) -> Result<(), InvalidConfig> {
        if client.has_other_transport(&self.transport) {
            let expected = "that of the client, because connections cannot be reconfigured at run time";
            return Err(InvalidConfig::new("transport", "other settings", expected).within("transport"));
        }
        client.reconfigure(&StackBuilder::from_config(self)?).map_err(InvalidConfig::in_file)
    }

    fn with_credential(&self, mut builder: StackBuilder) -> Result<StackBuilder, InvalidConfig> {
        let sources = [
            ("api_key", self.api_key.is_some()),
            ("api_key_env", self.api_key_env.is_some()),
            ("api_key_file", self.api_key_file.is_some()),
            ("no_credential", self.no_credential),
        ];
        let given: Vec<_> = sources.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
        if let [_, .., last] = *given {
            let expected = "only one of api_key, api_key_env, api_key_file and no_credential";
            let given = format!("given by {}", given.join(" and "));
            return Err(InvalidConfig::new("api key", given, expected).within(last));
        }
        if let Some(key) = &self.api_key {
            let key = key.text().and_then(ApiKey::new).map_err(|error| error.within("api_key"))?;
            builder = builder.with_api_key(key);
        }
        if let Some(variable) = &self.api_key_env {
            builder = builder.with_api_key_env(variable.clone());
        }
        if let Some(path) = &self.api_key_file {
            builder = builder.with_api_key_file(path);
        }
        if self.no_credential {
            builder = builder.without_credential();
        }
        let placement = self.key_placement.get().map_err(|error| error.within("key_placement"))?;
        Ok(builder.with_key_placement(placement.clone()))
    }
}
