//! The defaults, written out. That they are those of the code is for a test to say, which compares what is made of both.

use http::HeaderName;

use super::{
    BackoffSettings, BudgetSettings, HttpVersion, LimitSettings, PresetName, RequestIdSettings,
    RetrySettings, ServiceSettings, TimeoutSettings, TransportSettings,
};
use crate::{
    auth::{KeyPlacement, KeySource},
    body::DEFAULT_REPLAY_LIMIT,
    limit::PermitRequest,
    policy::ExponentialBackoff,
    preset::StackBuilder,
};

impl PresetName {
    pub(super) const ALL: [Self; 4] =
        [Self::CurrencyRates, Self::EmailDelivery, Self::RealtimeMessaging, Self::Custom];

    /// Where the key is looked for when nothing is said.
    pub(super) fn key_env(self) -> &'static str {
        match self {
            Self::CurrencyRates => "CURRENCY_RATES_API_KEY",
            Self::EmailDelivery => "EMAIL_DELIVERY_API_KEY",
            Self::RealtimeMessaging => "REALTIME_MESSAGING_API_KEY",
            Self::Custom => "API_KEY",
        }
    }
}

impl ServiceSettings {
    /// What holds where these settings say nothing.
    pub(super) fn defaults(&self, preset: &StackBuilder) -> Self {
        let kind = self.preset.unwrap_or_default();
        Self {
            preset: Some(kind),
            name: Some(preset.name().to_owned()),
            base_url: self.base_url.clone(),
            allow_plaintext: Some(false),
            allowed_origins: Some(Vec::new()),
            api_key: None,
            key_env: Some(kind.key_env().to_owned()),
            key_file: None,
            key_file_interval: self.key_file.is_some().then_some(KeySource::FILE_INTERVAL),
            key_placement: Some(KeyPlacement::bearer()),
            limit: LimitSettings {
                max_queue: Some(PermitRequest::DEFAULT_MAX_QUEUE),
                starting_empty: Some(false),
                ..LimitSettings::default()
            },
            retry: RetrySettings {
                max_attempts: Some(3),
                max_retry_after: Some(std::time::Duration::from_secs(120)),
                replay_limit: Some(DEFAULT_REPLAY_LIMIT),
                retry_on: Some(Vec::new()),
                never_on: Some(Vec::new()),
                backoff: written(ExponentialBackoff::transient()),
                throttled_backoff: written(ExponentialBackoff::throttled()),
                budget: BudgetSettings {
                    enabled: Some(true),
                    capacity: Some(500),
                    retry_cost: Some(14),
                    throttled_cost: Some(5),
                    success_gain: Some(1),
                },
                honoured_idempotency_key: None,
            },
            timeout: TimeoutSettings {
                total: Some(self.timeout.total_or_default()),
                attempt: Some(self.timeout.attempt_or_default()),
                body_idle: None,
            },
            request_id: RequestIdSettings {
                header: Some(HeaderName::from_static("x-request-id")),
                server_headers: Some(
                    ["x-request-id", "request-id", "x-amzn-requestid", "x-correlation-id", "cf-ray"]
                        .map(HeaderName::from_static)
                        .into(),
                ),
            },
            attempt: self.attempt.clone(),
            transport: TransportSettings {
                connect_timeout: Some(std::time::Duration::from_secs(5)),
                idle_timeout: Some(std::time::Duration::from_secs(90)),
                http: Some(HttpVersion::Negotiated),
                // Without TLS there are none.
                bundled_roots: cfg!(feature = "rustls").then_some(true),
                native_roots: Some(false),
                root_certificates: None,
            },
        }
    }
}

fn written(backoff: ExponentialBackoff) -> BackoffSettings {
    BackoffSettings { base: Some(backoff.base()), cap: Some(backoff.cap()), jitter: Some(backoff.jitter()) }
}
