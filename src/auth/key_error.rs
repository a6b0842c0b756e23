use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use crate::error::{BoxError, Error, ErrorKind, redact};

/// The error of a key source that failed. `source()` returns the cause: the error of the closure or of the file.
///
/// The [`Error`] of a call contains this message, and returns the same `source()`.
///
/// If the closure returns a `KeyError`, for example the error of another key source, requests receive this error
/// without a wrapper. The closure is not called again before the [`retry_in`](Self::retry_in) of this error has passed.
#[derive(Debug, Clone)]
pub struct KeyError(
    // Boxed, because each clone of a service has room for an error.
    Box<Inner>,
);

#[derive(Debug, Clone)]
struct Inner {
    message: Cow<'static, str>,
    retry_in: Option<Duration>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

const PROVIDER: &str = "the key provider failed";

impl KeyError {
    pub(crate) fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner { message: message.into(), retry_in: None, source: None }))
    }

    /// Creates the error of a provider that returned `error`.
    pub(super) fn of_provider(error: BoxError) -> Self {
        error.downcast().map_or_else(|error| Self::new(PROVIDER).with_source(error), |error| *error)
    }

    pub(crate) fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.0.source = Some(Arc::from(redact(source)));
        self
    }

    pub(crate) fn with_retry_in(mut self, wait: Duration) -> Self {
        self.0.retry_in = Some(wait);
        self
    }

    /// Returns the time until the next attempt to fetch the key. Returns `None` if the source is not backing off.
    pub fn retry_in(&self) -> Option<Duration> {
        self.0.retry_in
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match self.0.retry_in {
            Some(wait) => write!(f, ", next attempt in {wait:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for KeyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Creates the error of a call whose credential could not be added to its request. The message contains `why`.
pub(super) fn unattached(why: &'static str) -> Error {
    auth_error(why).showing_source()
}

/// Creates the error of a call whose credential could not be added to its request.
pub(super) fn auth_error(error: impl Into<BoxError>) -> Error {
    let error = error.into();
    let (of_source, again_in) = (error.is::<KeyError>(), error.downcast_ref().and_then(KeyError::retry_in));
    let error = Error::new(ErrorKind::Auth, again_in, Some(error));
    if of_source { error.showing_source() } else { error }
}
