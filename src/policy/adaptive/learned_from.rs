/// The reason for the latest change of a learned rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LearnedFrom {
    /// The quota in the server's rate-limit headers.
    #[default]
    Headers,
    /// A throttled response, such as a 429.
    Throttling,
    /// A time without throttled responses, or 503s that do not depend on the rate.
    Success,
}

impl LearnedFrom {
    /// Returns the name in log events: `headers`, `throttling` or `success`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::Throttling => "throttling",
            Self::Success => "success",
        }
    }
}
