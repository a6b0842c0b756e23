use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName};
use tracing::Span;

/// The settings of a layer, which its services share.
#[derive(Clone, Default)]
pub(super) struct Settings {
    pub(super) header: Option<HeaderName>,
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
