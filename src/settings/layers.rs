//! The smaller layers.

use std::time::Duration;

use http::HeaderName;

use super::{part::settings, text};
use crate::{
    attempt_span::AttemptSpanLayer,
    error::InvalidConfig,
    preset::StackBuilder,
    request_id::RequestIdLayer,
    timeout::{BodyIdleTimeoutLayer, TimeoutLayer},
};

settings! {
    /// How long things may take: [`TimeoutLayer`] and [`BodyIdleTimeoutLayer`].
    pub struct TimeoutSettings {
        /// The whole call, up to the head of the answer. 60 s by default.
        #[serde(with = "text")]
        pub total: Option<Duration>,
        /// One attempt. 10 s by default, or the whole call where that is shorter.
        #[serde(with = "text")]
        pub attempt: Option<Duration>,
        /// How long the body of an answer may stand still. Not bounded by default.
        #[serde(with = "text")]
        pub body_idle: Option<Duration>,
    }
}

impl TimeoutSettings {
    /// [`TimeoutLayer::total`].
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn total_layer(&self) -> Result<TimeoutLayer, InvalidConfig> {
        TimeoutLayer::total(self.total_or_default()).map_err(|error| error.within("total"))
    }

    /// [`TimeoutLayer::per_attempt`].
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn attempt_layer(&self) -> Result<TimeoutLayer, InvalidConfig> {
        TimeoutLayer::per_attempt(self.attempt_or_default()).map_err(|error| error.within("attempt"))
    }

    /// [`BodyIdleTimeoutLayer`], without a bound where none is given.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn body_idle_layer(&self) -> Result<BodyIdleTimeoutLayer, InvalidConfig> {
        match self.body_idle {
            Some(limit) => BodyIdleTimeoutLayer::new(limit).map_err(|error| error.within("body_idle")),
            None => Ok(BodyIdleTimeoutLayer::none()),
        }
    }

    pub(super) fn total_or_default(&self) -> Duration {
        self.total.unwrap_or(StackBuilder::DEFAULT_TOTAL_TIMEOUT)
    }

    pub(super) fn attempt_or_default(&self) -> Duration {
        self.attempt.unwrap_or(StackBuilder::DEFAULT_ATTEMPT_TIMEOUT.min(self.total_or_default()))
    }

    pub(super) fn preset(&self, mut preset: StackBuilder) -> StackBuilder {
        if let Some(limit) = self.total {
            preset = preset.with_total_timeout(limit);
        }
        if let Some(limit) = self.attempt {
            preset = preset.with_attempt_timeout(limit);
        }
        if let Some(limit) = self.body_idle {
            preset = preset.with_body_idle_timeout(limit);
        }
        preset
    }
}

settings! {
    /// The id of a call: [`RequestIdLayer`].
    pub struct RequestIdSettings {
        /// The header that it is sent in. `x-request-id` by default.
        #[serde(with = "text")]
        pub header: Option<HeaderName>,
        /// The headers in which the server's own id is looked for, in this order. `x-request-id`, `request-id`,
        /// `x-amzn-requestid`, `x-correlation-id` and `cf-ray` by default.
        #[serde(with = "text::list")]
        pub server_headers: Option<Vec<HeaderName>>,
    }
}

impl RequestIdSettings {
    /// The layer, with its own defaults for what is not said.
    pub fn layer(&self) -> RequestIdLayer {
        let mut layer = RequestIdLayer::new();
        if let Some(header) = &self.header {
            layer = layer.with_header(header.clone());
        }
        if let Some(headers) = &self.server_headers {
            layer = layer.with_server_headers(headers.iter().cloned());
        }
        layer
    }
}

settings! {
    /// What is sent with each attempt: [`AttemptSpanLayer`].
    pub struct AttemptSettings {
        /// The header with the number of the attempt. None by default.
        #[serde(with = "text")]
        pub header: Option<HeaderName>,
    }
}

impl AttemptSettings {
    /// The layer.
    pub fn layer(&self) -> AttemptSpanLayer {
        match &self.header {
            Some(header) => AttemptSpanLayer::new().with_attempt_header(header.clone()),
            None => AttemptSpanLayer::new(),
        }
    }
}
