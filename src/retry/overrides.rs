use crate::config::InvalidConfig;

/// Overrides the settings of the retry layer for one request. Insert a `RetryOverride` into the request's extensions.
///
/// To set the deadline of one request, use a [`Deadline`](crate::call::Deadline).
///
/// ```
/// use tower_outbound::retry::RetryOverride;
///
/// let mut request = http::Request::post("https://api.example.com/v1/searches").body(())?;
/// // This POST only reads.
/// request.extensions_mut().insert(RetryOverride::new().with_idempotent().with_max_attempts(5)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetryOverride {
    pub(super) max_attempts: Option<u32>,
    pub(super) idempotent: bool,
    /// If `true`, the request is also not resent with a new key after a 401.
    pub(super) never: bool,
}

impl RetryOverride {
    /// Creates overrides that change nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Disables retries. After a 401, the request is also not resent with a new key.
    pub fn without_retries(mut self) -> Self {
        self.max_attempts = Some(1);
        self.never = true;
        self
    }

    /// Sets the maximum number of attempts, including the first. A resend with a new key after a 401 does not count.
    ///
    /// # Errors
    ///
    /// Returns an error if the number is 0.
    pub fn with_max_attempts(mut self, max_attempts: u32) -> Result<Self, InvalidConfig> {
        self.max_attempts = Some(at_least_one(max_attempts)?);
        self.never = false;
        Ok(self)
    }

    /// Declares the request idempotent regardless of its method. The layer then also retries the request if the server
    /// may already have processed it.
    ///
    /// To declare all requests of one kind idempotent, use
    /// [`RetryLayer::with_idempotent`](super::RetryLayer::with_idempotent).
    pub fn with_idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }
}

pub(super) fn at_least_one(max_attempts: u32) -> Result<u32, InvalidConfig> {
    match max_attempts {
        0 => Err(InvalidConfig::of_setting("max attempts", "0", "at least 1: the first attempt counts")),
        _ => Ok(max_attempts),
    }
}
