use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName};
use tracing::Span;

use crate::config::text::Written;

/// Creates a span for each attempt.
///
/// ```
/// use http::HeaderName;
/// use tower_outbound::attempt_span::AttemptSpanLayer;
///
/// let layer = AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt"));
/// ```
///
/// # Default
///
/// By default nothing is added to the request, so that third-party servers learn neither attempt counts nor trace ids.
///
/// # Configuration
///
/// With the feature `serde`, the only field of this layer in a configuration file is `header`: see
/// [`with_attempt_header`](Self::with_attempt_header). `Serialize` omits the closure of
/// [`with_propagation`](Self::with_propagation).
#[derive(Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(expecting = "a table", default, deny_unknown_fields))]
pub struct AttemptSpanLayer {
    pub(super) header: Option<Written<HeaderName>>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) propagate: Option<Arc<Propagate>>,
}

type Propagate = dyn Fn(&Span, &mut HeaderMap) + Send + Sync;

impl AttemptSpanLayer {
    /// Creates a layer with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends the number of the attempt, starting at 1, in the header `header`. Replaces a value set by the caller.
    pub fn with_attempt_header(mut self, header: HeaderName) -> Self {
        self.header = Some(Written(header));
        self
    }

    /// Calls `propagate` for each attempt. The closure writes the context of the attempt's span into the request's
    /// headers, so that the server's spans become children of that span. With the feature `otel`,
    /// `adapter::trace_context` writes W3C's `traceparent`.
    ///
    /// If no subscriber enables the span, `propagate` receives a disabled span. The span has the level TRACE, or INFO
    /// with [`with_info_spans`](crate::request_id::RequestIdLayer::with_info_spans). The headers that `propagate`
    /// receives have room for 500 more fields. A request with room for fewer fields is rejected before `propagate` is
    /// called.
    pub fn with_propagation(
        mut self,
        propagate: impl Fn(&Span, &mut HeaderMap) + Send + Sync + 'static,
    ) -> Self {
        self.propagate = Some(Arc::new(propagate));
        self
    }
}

impl fmt::Debug for AttemptSpanLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptSpanLayer")
            .field("header", &self.header)
            .field("propagates", &self.propagate.is_some())
            .finish()
    }
}
