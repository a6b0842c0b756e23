use std::{borrow::Cow, fmt};

/// The error of an invalid configuration. It is returned when the configuration is created, not by the first request.
///
/// The error contains the field, the value and a description of the valid values. It never contains a key. `Debug` is
/// the same sentence as `Display`, because the standard library prints it if `main` returns the error.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::Quota;
///
/// let error = Quota::new(0, Duration::from_secs(60)).unwrap_err();
/// assert_eq!(error.field(), "quota limit");
/// assert_eq!(error.value(), "0");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidConfig {
    field: &'static str,
    value: Cow<'static, str>,
    expected: Cow<'static, str>,
    path: Option<Box<str>>,
}

impl InvalidConfig {
    /// Creates an error for `field`, which cannot have the value `value`. `expected` describes the valid values. Never
    /// pass a secret as the value.
    pub fn new(
        field: &'static str,
        value: impl Into<Cow<'static, str>>,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { field, value: value.into(), expected: expected.into(), path: None }
    }

    /// Adds the name of the table that contains the field in a configuration file. Each call adds the next outer table.
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

    #[cfg(feature = "serde")]
    pub(crate) fn expected(&self) -> &str {
        &self.expected
    }

    /// Replaces the description of the valid values by one with the names of a file's settings.
    #[cfg(feature = "serde")]
    pub(crate) fn expecting(mut self, expected: &'static str) -> Self {
        self.expected = expected.into();
        self
    }

    /// Returns the path of the field in a file, such as `services.rates.limit.quota`. Returns `None` if
    /// [`within`](Self::within) was not called.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// Returns the name of the field, such as `quota burst`.
    pub fn field(&self) -> &str {
        self.field
    }

    /// Returns the invalid value as text. For an invalid key, returns the source of the key instead.
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

impl fmt::Debug for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for InvalidConfig {}
