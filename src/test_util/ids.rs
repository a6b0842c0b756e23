use std::{
    fmt::{self, Debug},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use http::HeaderValue;

use crate::{request_id::MakeRequestId, stack::StackBuilder};

/// Makes the ids `req-1`, `req-2` and so on, for a [`RequestIdLayer`](crate::request_id::RequestIdLayer).
///
/// # Clone
///
/// Clones count together.
///
/// ```
/// use tower_outbound::{request_id::RequestIdLayer, test_util::SequentialIds};
///
/// let layer = RequestIdLayer::new().with_maker(SequentialIds::new());
/// ```
#[derive(Clone)]
pub struct SequentialIds {
    prefix: Arc<str>,
    made: Arc<AtomicU64>,
}

impl SequentialIds {
    /// Begins at `req-1`.
    pub fn new() -> Self {
        Self::with_prefix("req-")
    }

    /// Begins with 1 after this prefix.
    ///
    /// # Panics
    ///
    /// When no header can hold it.
    #[track_caller]
    pub fn with_prefix(prefix: &str) -> Self {
        assert!(HeaderValue::from_str(prefix).is_ok(), "no header can hold the prefix {prefix:?}");
        Self { prefix: prefix.into(), made: Arc::default() }
    }
}

impl Default for SequentialIds {
    fn default() -> Self {
        Self::new()
    }
}

impl MakeRequestId for SequentialIds {
    fn make_request_id(&self) -> HeaderValue {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        // What the prefix allowed, digits do not spoil.
        HeaderValue::try_from(format!("{}{number}", self.prefix))
            .unwrap_or_else(|_| HeaderValue::from(number))
    }
}

impl Debug for SequentialIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SequentialIds")
            .field("prefix", &self.prefix)
            .field("made", &self.made.load(Ordering::Relaxed))
            .finish()
    }
}

/// Leaves nothing of a preset's calls to chance: the jitter is drawn from `seed`, and the ids are `req-1`, `req-2` and so
/// on. For both, clones and layers of the preset draw on together.
///
/// Idempotency keys stay as unique as they are, and so does the jitter of a key provider that fails.
///
/// ```
/// use tower_outbound::{preset, test_util};
///
/// let preset = test_util::repeatable(preset::currency_rates("https://rates.example.com")?, 7);
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
#[must_use]
pub fn repeatable(preset: StackBuilder, seed: u64) -> StackBuilder {
    preset.map_chance(|retry| retry.with_seed(seed), |ids| ids.with_maker(SequentialIds::new()))
}
