use std::{borrow::Cow, fmt};

/// A setting that can't work, found when it was given and not when the first request needs it.
///
/// Says which field, which value, and what would be right. The value of a key is never in it.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::Quota;
///
/// let error = Quota::new(0, Duration::from_secs(60)).unwrap_err();
/// assert_eq!(error.field(), "quota limit");
/// assert_eq!(error.value(), "0");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidConfig {
    field: &'static str,
    value: Cow<'static, str>,
    expected: Cow<'static, str>,
}

impl InvalidConfig {
    /// `field` can't be `value`; `expected` says what it can be. Never pass a secret as the value.
    pub fn new(
        field: &'static str,
        value: impl Into<Cow<'static, str>>,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { field, value: value.into(), expected: expected.into() }
    }

    /// The name of the field, such as `quota burst`.
    pub fn field(&self) -> &str {
        self.field
    }

    /// The value that was refused, as text; for a key it says where the key came from instead.
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid {} `{}`: expected {}", self.field, self.value, self.expected)
    }
}

impl std::error::Error for InvalidConfig {}
