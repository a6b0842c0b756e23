use crate::config::InvalidConfig;

/// Overrides the settings of the layer for one request, in the request's extensions.
///
/// A [`Deadline`](crate::call::Deadline) sets the deadline of one request.
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
    /// Also disables the resend with another key.
    pub(super) never: bool,
}

impl RetryOverride {
    /// Overrides nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Disables retries, and the resend after a 401 whose key is replaced.
    pub fn without_retries(mut self) -> Self {
        self.max_attempts = Some(1);
        self.never = true;
        self
    }

    /// Sets the number of attempts, including the first. The resend with another key does not count.
    ///
    /// # Errors
    ///
    /// Returns an error if the number is 0.
    pub fn with_max_attempts(mut self, max_attempts: u32) -> Result<Self, InvalidConfig> {
        self.max_attempts = Some(at_least_one(max_attempts)?);
        self.never = false;
        Ok(self)
    }

    /// Declares the request idempotent, whatever its method, so that it is retried also after an attempt that may have been
    /// processed.
    ///
    /// [`RetryLayer::with_idempotent`](super::RetryLayer::with_idempotent) declares a kind of requests.
    pub fn with_idempotent(mut self) -> Self {
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
