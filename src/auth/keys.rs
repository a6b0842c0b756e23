use std::{fmt, future::poll_fn, path::PathBuf, sync::Arc, task::Poll};

use super::{ApiKey, KeyError, KeyFile, RefreshingKey, file::Watched, provided::Provided, refresh::Refresh};
use crate::error::InvalidConfig;

/// Where a key comes from: a value, a file that is read again when it changes, or a provider that is asked again
/// before the key expires.
///
/// ```
/// use tower_outbound::{ApiKey, auth::KeySource};
///
/// # fn make() -> Result<(), tower_outbound::InvalidConfig> {
/// let value = KeySource::from(ApiKey::from_env("RATES_KEY")?);
/// let file = KeySource::from_file("/run/secrets/rates")?;
/// # Ok(())
/// # }
/// ```
///
/// # Clone
///
/// Clones share the key and its refresh: give one of them to each layer that sends the key.
#[derive(Clone)]
pub struct KeySource {
    source: Source,
}

#[derive(Clone)]
enum Source {
    Fixed(CurrentKey),
    File(Arc<Watched>),
    Provided(Arc<Provided>),
}

/// What a source has for the request at hand.
pub(super) enum Lease {
    /// A key, and perhaps the refresh that fetches the one after it, to be driven along with the request.
    Ready(CurrentKey, Option<Refresh>),
    Wait(Refresh),
    Failed(KeyError),
}

impl KeySource {
    /// The key in the file at `path`, which is looked at every [`KeyFile::DEFAULT_INTERVAL`].
    ///
    /// # Errors
    ///
    /// As [`KeyFile::open`].
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Self, InvalidConfig> {
        KeyFile::open(path).map(Self::from)
    }

    /// The key that is valid now, for whoever signs with it; waits for a refresh when there is none.
    ///
    /// # Errors
    ///
    /// When the source has no valid key and could give none.
    ///
    /// # Cancellation
    ///
    /// Dropped while it waits, it leaves the refresh to the others, or to the next that asks.
    pub async fn current(&self) -> Result<CurrentKey, KeyError> {
        match self.lease() {
            // One step on the way, should it take no more; its task takes the others.
            Lease::Ready(key, Some(mut ahead)) => {
                let new = poll_fn(|cx| Poll::Ready(ahead.poll(cx))).await;
                Ok(if let Poll::Ready(Ok(new)) = new { new } else { key })
            }
            Lease::Ready(key, None) => Ok(key),
            Lease::Wait(mut refresh) => poll_fn(|cx| refresh.poll(cx)).await,
            Lease::Failed(error) => Err(error),
        }
    }

    /// The server has refused `key`. Says whether another one is there or on its way, so that sending again makes
    /// sense.
    ///
    /// Many calls may say so of the same key: one refresh comes of it. A key that is refused soon after it was
    /// fetched is kept, and false is the answer: see [`RefreshingKey::with_backoff`].
    pub fn reject(&self, key: &CurrentKey) -> bool {
        match &self.source {
            Source::Fixed(_) => false,
            Source::File(file) => file.reject(key),
            Source::Provided(provided) => provided.reject(key),
        }
    }

    /// Why the last look at the file or the last refresh failed; none when it did not. The key before it is in use
    /// for as long as it is valid.
    pub fn last_error(&self) -> Option<KeyError> {
        match &self.source {
            Source::Fixed(_) => None,
            Source::File(file) => file.last_error(),
            Source::Provided(provided) => provided.last_error(),
        }
    }

    pub(super) fn lease(&self) -> Lease {
        match &self.source {
            Source::Fixed(key) => Lease::Ready(key.clone(), None),
            Source::File(file) => Lease::Ready(file.current(), None),
            Source::Provided(provided) => provided.lease(),
        }
    }

    /// The key that was there last, valid or not.
    #[cfg(feature = "client")]
    pub(crate) fn known(&self) -> Option<CurrentKey> {
        match &self.source {
            Source::Fixed(key) => Some(key.clone()),
            Source::File(file) => Some(file.known()),
            Source::Provided(provided) => provided.known(),
        }
    }

    /// The key that never changes.
    pub(super) fn fixed(&self) -> Option<&CurrentKey> {
        match &self.source {
            Source::Fixed(current) => Some(current),
            _ => None,
        }
    }
}

impl From<ApiKey> for KeySource {
    fn from(key: ApiKey) -> Self {
        Self { source: Source::Fixed(CurrentKey::new(key, 0)) }
    }
}

impl From<KeyFile> for KeySource {
    fn from(file: KeyFile) -> Self {
        Self { source: Source::File(Arc::new(Watched::new(file))) }
    }
}

impl From<RefreshingKey> for KeySource {
    fn from(provided: RefreshingKey) -> Self {
        Self { source: Source::Provided(Arc::new(Provided::new(provided))) }
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            Source::Fixed(_) => "value",
            Source::File(_) => "file",
            Source::Provided(_) => "provider",
        };
        f.debug_struct("KeySource").field("source", &source).finish_non_exhaustive()
    }
}

/// A key as it was at one moment, told from those before and after it.
#[derive(Clone, PartialEq, Eq)]
pub struct CurrentKey {
    key: ApiKey,
    generation: u64,
}

impl CurrentKey {
    pub(super) fn new(key: ApiKey, generation: u64) -> Self {
        Self { key, generation }
    }

    /// The key.
    pub fn key(&self) -> &ApiKey {
        &self.key
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }
}

impl fmt::Debug for CurrentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentKey").field("generation", &self.generation).finish_non_exhaustive()
    }
}
