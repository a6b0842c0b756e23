use http::HeaderName;
use serde::{Deserialize, Serialize};

use super::AttemptSpanLayer;
use crate::config::text::Written;

/// The configuration of an [`AttemptSpanLayer`], read from a file. Code uses the layer's setters.
///
/// Its field is `header`, which carries the number of the attempt. No such header is sent by default.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttemptSpanConfig {
    header: Option<Written<HeaderName>>,
}

impl AttemptSpanLayer {
    /// Creates a layer from its configuration.
    pub fn from_config(config: &AttemptSpanConfig) -> Self {
        match &config.header {
            Some(header) => Self::new().with_attempt_header(header.0.clone()),
            None => Self::new(),
        }
    }
}
