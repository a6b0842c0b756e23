use std::sync::Arc;

use http::{Extensions, response};

use crate::error::Error;

/// Marks a request that the client passes to the stack again, because the body of the response broke. The retry layer
/// removes the marker from the extensions of the request, and decides as after any failed attempt.
#[derive(Clone)]
pub(crate) struct BrokenBody(Arc<(BrokenResponse, Error)>);

/// A response whose body broke.
pub(crate) struct BrokenResponse {
    pub(crate) head: response::Parts,
    /// Whether the request still has its body.
    pub(crate) is_replayable: bool,
}

impl BrokenBody {
    /// Creates a marker. `error` is from [`Error::of_body`].
    #[cfg(feature = "client")]
    pub(crate) fn new(response: BrokenResponse, error: Error) -> Self {
        Self(Arc::new((response, error)))
    }

    /// Removes the marker from the extensions of a request, which contain its call. Returns the value of the marker.
    pub(crate) fn take_from(extensions: &mut Extensions) -> Option<(BrokenResponse, Error)> {
        // Most requests have no other extension, so the lookup is skipped for them.
        let Self(marked) = if extensions.len() > 1 { extensions.remove()? } else { return None };
        Arc::into_inner(marked)
    }
}
