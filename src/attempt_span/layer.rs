use std::{fmt, sync::Arc};

use http::HeaderName;
use tower_layer::Layer;

use super::{AttemptSpan, Propagate, settings::Settings};

/// Gives each attempt a span of its own.
///
/// # Default
///
/// Sends nothing in the request, so that third-party servers do not learn attempt counts or trace ids.
#[derive(Clone, Default)]
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
        self.settings.header = Some(header);
        self
    }

    /// Sends the context of the attempt's span.
    pub fn with_propagation(mut self, propagate: impl Propagate + 'static) -> Self {
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
