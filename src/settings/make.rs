//! What is made of the settings of a service.

use super::{PresetName, ServiceSettings, name::checked};
use crate::{
    auth::{ApiKey, AuthLayer, KeySource, Origin},
    client::Client,
    error::InvalidConfig,
    preset::{self, BaseUrl, StackBuilder, StackLayer},
};

impl PresetName {
    fn preset(self, url: &str) -> Result<StackBuilder, InvalidConfig> {
        match self {
            Self::CurrencyRates => preset::currency_rates(url),
            Self::EmailDelivery => preset::email_delivery(url),
            Self::RealtimeMessaging => preset::realtime_messaging(url),
            Self::Custom => StackBuilder::new("custom", url),
        }
    }
}

impl ServiceSettings {
    /// The preset, with all but the transport set, for setters of what only code can say. What it needs of the outside, such
    /// as the key, is looked at when a layer or a client is made of it.
    ///
    /// [`limit.starting_empty`](super::LimitSettings::starting_empty) is a limiter that was given:
    /// [`StackBuilder::with_quota`] and [`with_quotas`](StackBuilder::with_quotas) put one that starts full in its place.
    ///
    /// # Clone
    ///
    /// Each call begins a limiter and a retry budget of its own. Clones of what it gives share them.
    ///
    /// # Errors
    ///
    /// As the setters of [`StackBuilder`] and of its layers, each with the [path](InvalidConfig::path) of the setting.
    pub fn preset(&self) -> Result<StackBuilder, InvalidConfig> {
        let kind = self.preset.unwrap_or_default();
        let mut preset = kind.preset(self.url()).map_err(|error| error.within("base_url"))?;
        match &self.name {
            Some(name) => {
                preset = preset.with_name(checked(name).map_err(|error| error.within("name"))?);
            }
            None if kind == PresetName::Custom => {
                let error = InvalidConfig::new("name", "", "a name for the log, as no preset is named");
                return Err(error.within("name"));
            }
            None => {}
        }
        if self.allow_plaintext == Some(true) {
            preset = preset.allow_plaintext();
        }
        for origin in self.allowed_origins.iter().flatten() {
            preset = preset.with_allowed_origin(origin.clone());
        }
        preset = self.keyed(preset)?;
        preset = self
            .limit
            .preset(preset)
            .with_retry(self.retry.layer().map_err(|error| error.within("retry"))?)
            .with_request_id(self.request_id.layer())
            .with_attempt(self.attempt.layer());
        Ok(self.timeout.preset(preset))
    }

    /// The whole stack as a layer: [`StackBuilder::layer`].
    ///
    /// # Errors
    ///
    /// As [`preset`](Self::preset) and [`StackBuilder::layer`].
    pub fn layer(&self) -> Result<StackLayer, InvalidConfig> {
        self.preset()?.layer().map_err(|error| self.placed(error))
    }

    /// A ready client: [`StackBuilder::client_over`] the transport of these settings.
    ///
    /// # Errors
    ///
    /// As [`preset`](Self::preset), [`StackBuilder::client_over`] and
    /// [`TransportSettings::transport`](super::TransportSettings::transport).
    pub fn client(&self) -> Result<Client, InvalidConfig> {
        let transport = self.transport.transport().map_err(|error| error.within("transport"))?;
        self.preset()?.client_over(transport).map_err(|error| self.placed(error))
    }

    /// The layer that puts the key on a request, for a stack of one's own. Reads the key.
    ///
    /// # Errors
    ///
    /// When the key can't be had, and when it would travel without TLS.
    pub fn auth_layer(&self) -> Result<AuthLayer, InvalidConfig> {
        let keys = self.keys().map_err(|error| self.placed(error))?;
        let url = BaseUrl::parse(self.url()).map_err(|error| error.within("base_url"))?;
        let plaintext = self.allow_plaintext == Some(true);
        let origin = url.origin().clone();
        let origin = if plaintext { origin.allow_plaintext() } else { origin };
        let layer = AuthLayer::new(keys, origin).map_err(|error| self.placed(error))?;
        let layer = layer.with_placement(self.key_placement.clone().unwrap_or_default());
        let mut allowed = self.allowed_origins.iter().flatten().cloned();
        allowed.try_fold(layer, AuthLayer::with_allowed_origin).map_err(|error| self.placed(error))
    }

    /// These settings with every default written out, for who wants to see what holds. Without the key, as ever.
    ///
    /// # Errors
    ///
    /// As [`preset`](Self::preset).
    pub fn effective(&self) -> Result<Self, InvalidConfig> {
        let preset = self.preset()?;
        let mut effective = self.clone().over(self.defaults(&preset));
        effective.limit.quota = Some(preset.quotas().to_vec());
        Ok(effective)
    }

    fn url(&self) -> &str {
        self.base_url.as_ref().map_or("", AsRef::as_ref)
    }

    fn one_source(&self) -> Result<(), InvalidConfig> {
        let given: Vec<_> = self.key_sources().collect();
        if given.len() < 2 {
            return Ok(());
        }
        let expected = "one source of a key: api_key, key_env or key_file";
        Err(InvalidConfig::new("api key", format!("given by {}", given.join(" and ")), expected)
            .within(given[given.len() - 1]))
    }

    /// Lazily, as whatever a preset is told.
    fn keyed(&self, mut preset: StackBuilder) -> Result<StackBuilder, InvalidConfig> {
        self.one_source()?;
        if let Some(key) = &self.api_key {
            preset = preset.with_api_key(key.key().map_err(|error| error.within("api_key"))?);
        }
        if let Some(variable) = &self.key_env {
            preset = preset.with_key_env(variable.clone());
        }
        if let Some(path) = &self.key_file {
            let interval = self.key_file_interval.unwrap_or(KeySource::FILE_INTERVAL);
            preset = preset.with_key_file_every(path, interval);
        }
        Ok(preset.with_key_placement(self.key_placement.clone().unwrap_or_default()))
    }

    fn keys(&self) -> Result<KeySource, InvalidConfig> {
        self.one_source()?;
        match (&self.api_key, &self.key_file) {
            (Some(key), _) => key.key().map(KeySource::from),
            (_, Some(path)) => {
                let interval = self.key_file_interval.unwrap_or(KeySource::FILE_INTERVAL);
                KeySource::from_file_every(path, interval)
            }
            _ => {
                let variable = self.key_env.as_deref().unwrap_or(self.preset.unwrap_or_default().key_env());
                ApiKey::from_env(variable).map(KeySource::from)
            }
        }
    }

    /// Says where the setting stands that the making of a layer or a client has blamed.
    fn placed(&self, error: InvalidConfig) -> InvalidConfig {
        let base = || self.base_url.as_ref().and_then(|url| Origin::parse(url.as_ref()).ok());
        let path = match error.field() {
            "api key" => self.key_sources().next().unwrap_or("key_env"),
            "key header" | "query parameter" | "user" => "key_placement",
            "origin" if base().is_some_and(|base| base.to_string() == error.value()) => "base_url",
            "origin" => "allowed_origins",
            "base url" => "base_url",
            "total timeout" => "timeout.total",
            "attempt timeout" => "timeout.attempt",
            "body idle timeout" => "timeout.body_idle",
            "connect timeout" => "transport.connect_timeout",
            "idle timeout" => "transport.idle_timeout",
            _ => return error,
        };
        error.within(path)
    }
}
