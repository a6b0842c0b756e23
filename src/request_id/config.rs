use http::HeaderName;
use serde::{Deserialize, Serialize};

use super::RequestIdLayer;
use crate::config::text::{List, Written};

/// The configuration of a [`RequestIdLayer`], read from a file. Code uses the layer's setters.
///
/// | field | default |
/// |---|---|
/// | `header` | `x-request-id` |
/// | `server_headers` | `x-request-id`, `request-id`, `x-amzn-requestid`, `x-correlation-id`, `cf-ray` |
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequestIdConfig {
    header: Written<HeaderName>,
    server_headers: List<HeaderName>,
}

impl Default for RequestIdConfig {
    fn default() -> Self {
        let layer = RequestIdLayer::new();
        let server_headers = layer.settings.naming.server_headers.iter().cloned();
        Self {
            header: Written(layer.settings.header.clone()),
            server_headers: List(server_headers.collect()),
        }
    }
}

impl RequestIdLayer {
    /// Creates a layer from its configuration.
    pub fn from_config(config: &RequestIdConfig) -> Self {
        Self::new()
            .with_header(config.header.0.clone())
            .with_server_headers(config.server_headers.0.iter().cloned())
    }
}
