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
    path: Option<Box<str>>,
}

impl InvalidConfig {
    /// `field` can't be `value`; `expected` says what it can be. Never pass a secret as the value.
    pub fn new(
        field: &'static str,
        value: impl Into<Cow<'static, str>>,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { field, value: value.into(), expected: expected.into(), path: None }
    }

    /// Says where the setting stands, for who reads settings from a file: each call goes one level out.
    ///
    /// ```
    /// # use tower_outbound::Quota;
    /// let error = Quota::per_minute(0).unwrap_err().within("limit.quota").within("services.rates");
    /// assert_eq!(error.path(), Some("services.rates.limit.quota"));
    /// assert_eq!(error.to_string(), "services.rates.limit.quota: invalid quota limit `0`: expected at least 1");
    /// ```
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        self.path = Some(match self.path {
            Some(path) => format!("{outer}.{path}").into(),
            None => outer.into(),
        });
        self
    }

    /// Where the setting stands, such as `services.rates.limit.quota`; none when nobody [said](Self::within).
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
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
        if let Some(path) = &self.path {
            write!(f, "{path}: ")?;
        }
        write!(f, "invalid {} `{}`: expected {}", self.field, self.value, self.expected)
    }
}

impl std::error::Error for InvalidConfig {}
