use http::HeaderName;

use crate::config::text::{List, Written};

/// The configuration of a [`RequestIdLayer`](super::RequestIdLayer), for files: see
/// [`RequestIdLayer::from_config`](super::RequestIdLayer::from_config). Code uses the layer's setters.
///
/// | field | default |
/// |---|---|
/// | `header` | `x-request-id` |
/// | `server_headers` | `x-request-id`, `request-id`, `x-amzn-requestid`, `x-correlation-id`, `cf-ray` |
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct RequestIdConfig {
    pub(super) header: Written<HeaderName>,
    pub(super) server_headers: List<HeaderName>,
}

impl Default for RequestIdConfig {
    fn default() -> Self {
        let server_headers = ["x-request-id", "request-id", "x-amzn-requestid", "x-correlation-id", "cf-ray"];
        Self {
            header: Written(HeaderName::from_static("x-request-id")),
            server_headers: List(server_headers.map(HeaderName::from_static).into()),
        }
    }
}
