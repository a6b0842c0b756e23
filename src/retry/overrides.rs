use crate::error::InvalidConfig;

/// How one request is tried, put into its extensions; what it does not say is the layer's.
///
/// A deadline of its own is [`Deadline`](crate::call::Deadline).
///
/// ```
/// use tower_outbound::retry::RetryOverride;
///
/// let mut request = http::Request::post("https://api.example.com/v1/searches").body(())?;
/// // This POST only reads.
/// request.extensions_mut().insert(RetryOverride::new().idempotent().with_max_attempts(5)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetryOverride {
    pub(super) max_attempts: Option<u32>,
    pub(super) idempotent: bool,
    /// Not even when its key is replaced.
    pub(super) never: bool,
}

impl RetryOverride {
    /// Nothing else than the layer's.
    pub fn new() -> Self {
        Self::default()
    }

    /// Is sent once, whatever comes of it: not even when the server refused its key and there is another one.
    pub fn never(mut self) -> Self {
        self.max_attempts = Some(1);
        self.never = true;
        self
    }

    /// At most `max_attempts` attempts, the first counted, and not the one that follows a key's replacement.
    ///
    /// # Errors
    ///
    /// When it is 0.
    pub fn with_max_attempts(mut self, max_attempts: u32) -> Result<Self, InvalidConfig> {
        self.max_attempts = Some(at_least_one(max_attempts)?);
        self.never = false;
        Ok(self)
    }

    /// Doing it twice is doing it once, whatever its method: it may be sent again after an attempt that may have been
    /// processed. Of a whole kind of requests it is said by
    /// [`RetryLayer::with_idempotent`](super::RetryLayer::with_idempotent).
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }
}

pub(super) fn at_least_one(max_attempts: u32) -> Result<u32, InvalidConfig> {
    match max_attempts {
        0 => Err(InvalidConfig::new("max attempts", "0", "at least 1: the first attempt counts")),
        _ => Ok(max_attempts),
    }
}
