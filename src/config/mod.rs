//! The error of an invalid configuration, and the text formats of values in configuration files.

pub(crate) mod text;

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
///
/// # Which setters fail
///
/// - [`StackBuilder`](crate::stack::StackBuilder), [`TransportConfig`](crate::transport::TransportConfig) and
///   [`RequestBuilder`](crate::client::RequestBuilder) are builders: no setter fails. The last step, such as `client()`,
///   `build()` or the request's `.await`, returns the error of the first invalid value.
/// - Every other type is complete after each step, such as a [`Quota`](crate::Quota), a
///   [`LocalLimiter`](crate::limit::LocalLimiter) or a layer. A constructor or setter that rejects some values returns
///   a `Result`. One that accepts every value does not.
///
/// A setting of the same name may therefore return a `Result` on a limiter, and none on the builder.
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidConfig {
    field: &'static str,
    value: Cow<'static, str>,
    expected: Cow<'static, str>,
    /// Replaces `expected` for a value from a file, if `expected` names setters.
    expected_in_file: Option<&'static str>,
    /// The segments of the path in a file, innermost first. The code that checks or converts a value adds its segment.
    path: Vec<Segment>,
    /// Whether the value is from a file. The error then shows its path.
    is_from_file: bool,
}

#[derive(Clone, PartialEq, Eq)]
enum Segment {
    Field(Cow<'static, str>),
    #[cfg_attr(not(feature = "serde"), expect(dead_code, reason = "only a file has lists"))]
    Index(usize),
}

impl InvalidConfig {
    /// Creates an error for `field`, which cannot have the value `value`. `expected` describes the valid values. Never
    /// pass a secret as the value.
    pub fn new(
        field: &'static str,
        value: impl Into<Cow<'static, str>>,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (value, expected) = (value.into(), expected.into());
        Self { field, value, expected, expected_in_file: None, path: Vec::new(), is_from_file: false }
    }

    /// Like [`new`](Self::new), for a setting whose name in a file is the name of the field in snake case.
    pub(crate) fn of_setting(
        field: &'static str,
        value: impl Into<Cow<'static, str>>,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(field, value, expected).at(field.replace([' ', '-'], "_"))
    }

    /// Adds the next outer segment of the field's path in a configuration file, such as the name of a table.
    ///
    /// The error of a setting, such as `max_attempts` or the `base` of a backoff, already has the name of the setting
    /// as the innermost segment. The error of a single value, such as a [`Quota`](crate::Quota), has no segment.
    ///
    /// ```
    /// # use tower_outbound::Quota;
    /// let error = Quota::per_minute(0).unwrap_err().within("quota").within("limit").within("rates");
    /// assert_eq!(error.path().as_deref(), Some("rates.limit.quota"));
    /// assert_eq!(error.to_string(), "rates.limit.quota: invalid quota limit `0`: expected at least 1");
    /// ```
    #[must_use]
    pub fn within(self, outer: impl Into<Cow<'static, str>>) -> Self {
        self.at(outer).in_file()
    }

    /// Adds the next outer segment of the path, which only an error of a file shows.
    pub(crate) fn at(mut self, outer: impl Into<Cow<'static, str>>) -> Self {
        self.path.push(Segment::Field(outer.into()));
        self
    }

    /// Adds the position in a list as the next outer segment of the path.
    #[cfg(feature = "serde")]
    pub(crate) fn at_index(mut self, index: usize) -> Self {
        self.path.push(Segment::Index(index));
        self
    }

    /// Shows the path of the error, because the value is from a file.
    pub(crate) fn in_file(mut self) -> Self {
        self.is_from_file = true;
        self
    }

    /// Adds a description of the valid values that names the fields of a file, because `expected` names setters.
    pub(crate) fn expecting_in_file(mut self, expected: &'static str) -> Self {
        self.expected_in_file = Some(expected);
        self
    }

    /// Returns the path of the field in a file, such as `services.rates.limit.quota[0]`. Returns `None` if the value is
    /// from code and [`within`](Self::within) was not called.
    pub fn path(&self) -> Option<String> {
        if self.path.is_empty() || !self.is_from_file {
            return None;
        }
        let mut path = String::new();
        for segment in self.path.iter().rev() {
            match segment {
                Segment::Field(field) if path.is_empty() => path.push_str(field),
                Segment::Field(field) => path.extend([".", field]),
                Segment::Index(index) => path.push_str(&format!("[{index}]")),
            }
        }
        Some(path)
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
        if let Some(path) = self.path() {
            write!(f, "{path}: ")?;
        }
        let expected = self.expected_in_file.filter(|_| self.is_from_file).unwrap_or(&self.expected);
        write!(f, "invalid {} `{}`: expected {expected}", self.field, self.value)
    }
}

impl fmt::Debug for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for InvalidConfig {}
