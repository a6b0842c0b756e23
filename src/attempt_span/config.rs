use http::HeaderName;

use crate::config::text::Written;

/// The configuration of an [`AttemptSpanLayer`](super::AttemptSpanLayer), for files: see
/// [`AttemptSpanLayer::from_config`](super::AttemptSpanLayer::from_config). Code uses the layer's setters.
///
/// Its field is `header`, which carries the number of the attempt. No such header is sent by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct AttemptSpanConfig {
    pub(super) header: Option<Written<HeaderName>>,
}
