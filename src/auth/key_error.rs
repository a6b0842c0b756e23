use std::{fmt, sync::Arc, time::Duration};

use crate::error::{BoxError, redact};

/// Why there is no key to send, or no newer one. What the provider failed with is the source.
#[derive(Debug, Clone)]
pub struct KeyError {
    what: What,
    retry_in: Option<Duration>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    File,
    Failed,
    TimedOut(Duration),
    Expired,
    Panicked,
    NotReady,
}

impl KeyError {
    pub(super) fn new(what: What) -> Self {
        Self { what, retry_in: None, source: None }
    }

    pub(super) fn caused(what: What, source: impl Into<BoxError>) -> Self {
        Self { what, retry_in: None, source: Some(Arc::from(redact(source))) }
    }

    pub(super) fn with_retry_in(mut self, wait: Duration) -> Self {
        self.retry_in = Some(wait);
        self
    }

    /// How long the source is left alone after its failure; no request tries it before.
    pub fn retry_in(&self) -> Option<Duration> {
        self.retry_in
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::File => f.write_str("the key file could not be read again"),
            What::Failed => f.write_str("the key provider failed"),
            What::TimedOut(limit) => write!(f, "the key provider gave no key within {limit:?}"),
            What::Expired => f.write_str("the key provider gave a key that has expired"),
            What::Panicked => f.write_str("the key provider panicked"),
            What::NotReady => {
                f.write_str("no key was fetched, for the service was called before it was ready")
            }
        }?;
        match self.retry_in {
            Some(wait) => write!(f, ", next attempt in {wait:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for KeyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
