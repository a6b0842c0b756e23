use std::{fmt, sync::Arc};

use http::HeaderName;

use super::Propagate;

/// The settings of a layer, which its services share.
#[derive(Clone, Default)]
pub(super) struct Settings {
    pub(super) header: Option<HeaderName>,
    pub(super) propagate: Option<Arc<dyn Propagate>>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptSpanLayer")
            .field("header", &self.header)
            .field("propagates", &self.propagate.is_some())
            .finish()
    }
}
