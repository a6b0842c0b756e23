use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName};
use tracing::Span;

use crate::config::text::Written;

/// The settings of a layer, which its services share.
#[derive(Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename = "AttemptSpanLayer", default, deny_unknown_fields))]
pub(super) struct Settings {
    pub(super) header: Option<Written<HeaderName>>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) propagate: Option<Arc<Propagate>>,
}

type Propagate = dyn Fn(&Span, &mut HeaderMap) + Send + Sync;

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptSpanLayer")
            .field("header", &self.header)
            .field("propagates", &self.propagate.is_some())
            .finish()
    }
}
