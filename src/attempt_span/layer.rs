use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName};
use tower_layer::Layer;
use tracing::Span;

use super::{AttemptSpan, settings::Settings};
use crate::config::text::Written;

/// Gives each attempt a span of its own.
///
/// # Default
///
/// Sends nothing in the request, so that third-party servers do not learn attempt counts or trace ids.
///
/// # Configuration
///
/// With the feature `serde` a file has the field `header`: see [`with_attempt_header`](Self::with_attempt_header).
/// `Serialize` omits the closure.
#[derive(Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct AttemptSpanLayer {
    settings: Settings,
}

impl AttemptSpanLayer {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends the number of the attempt, from 1, in this header. Replaces a value of the caller.
    pub fn with_attempt_header(mut self, header: HeaderName) -> Self {
        self.settings.header = Some(Written(header));
        self
    }

    /// Calls `propagate` for each attempt, to write the context of the attempt's span into the request's headers, so that
    /// the server's spans become its children. With the feature `otel`, `adapter::trace_context` writes W3C's
    /// `traceparent`.
    ///
    /// The span is disabled if no subscriber enables it. The headers have room for 500 fields. A request without that room
    /// is rejected before this call.
    pub fn with_propagation(
        mut self,
        propagate: impl Fn(&Span, &mut HeaderMap) + Send + Sync + 'static,
    ) -> Self {
        self.settings.propagate = Some(Arc::new(propagate));
        self
    }
}

impl<S> Layer<S> for AttemptSpanLayer {
    type Service = AttemptSpan<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AttemptSpan::new(inner, self.settings.clone())
    }
}

impl fmt::Debug for AttemptSpanLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}
