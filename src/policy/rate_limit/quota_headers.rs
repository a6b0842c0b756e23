use std::time::Duration;

use http::HeaderName;

use super::{
    list::Unit,
    rows::{Field, Row},
};
use crate::config::{InvalidConfig, text::Written};

/// The headers in which a service reports the remaining or the used permits of one quota.
///
/// The headers of the IETF drafts, `X-RateLimit-*` and those of the services that the [guide](crate::guide::services)
/// lists need no setting.
///
/// ```
/// use std::time::Duration;
/// use http::HeaderName;
/// use tower_outbound::limit::{QuotaHeaders, Unit};
///
/// let name = HeaderName::from_static;
/// let credits = QuotaHeaders::new(name("x-acme-credits-left"))
///     .with_reset(name("x-acme-credits-renew-at"))
///     .with_limit(name("x-acme-credits"))
///     .with_unit(Unit::Points);
/// ```
///
/// # Forms
///
/// Permits are numbers, except in the form `32/40` of [`of_used`](Self::of_used). A reset is a duration or a moment:
/// seconds with or without a fraction, a Unix time in seconds or milliseconds, `1m30s`, an HTTP-date, or a time of RFC
/// 3339. A header may contain a comma-separated list, in which each member belongs to another quota.
///
/// Without a header that states the reset, more permits are expected after the window of the
/// [header](Self::with_window_header), otherwise after the [documented one](Self::with_window). A dialect rejects a
/// quota without any of these three. It also rejects a quota without a header for the permits, such as the default.
///
/// If a setter is called twice, the second call replaces the header of the first.
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(expecting = "a table", deny_unknown_fields))]
pub struct QuotaHeaders {
    remaining: Option<Written<HeaderName>>,
    used: Option<Written<HeaderName>>,
    reset: Option<Written<HeaderName>>,
    limit: Option<Written<HeaderName>>,
    resource: Option<Written<HeaderName>>,
    window_header: Option<Written<HeaderName>>,
    unit: Option<Written<Unit>>,
    window: Option<Written<Duration>>,
}

impl QuotaHeaders {
    /// Reads the remaining permits from the header `remaining`.
    pub fn new(remaining: HeaderName) -> Self {
        Self { remaining: Some(Written(remaining)), ..Self::default() }
    }

    /// Reads the used permits from the header `used`, and the limit from the header of
    /// [`with_limit`](Self::with_limit). Without a header with the limit, `used` states both, as in `32/40`. The
    /// service is then expected to refill its permits evenly over the [window](Self::with_window). The window is
    /// required, and no other header is allowed.
    pub fn of_used(used: HeaderName) -> Self {
        Self { used: Some(Written(used)), ..Self::default() }
    }

    /// Reads from this header when more permits become available.
    pub fn with_reset(self, name: HeaderName) -> Self {
        Self { reset: Some(Written(name)), ..self }
    }

    /// Reads from this header how many permits each window has. A quota with a limit of zero or below is ignored.
    pub fn with_limit(self, name: HeaderName) -> Self {
        Self { limit: Some(Written(name)), ..self }
    }

    /// Reads from this header to which resource the quota belongs. Quotas of different resources are different quotas.
    pub fn with_resource(self, name: HeaderName) -> Self {
        Self { resource: Some(Written(name)), ..self }
    }

    /// Sets what the quota counts. Default: requests. A limiter applies only quotas of requests to its rate.
    pub fn with_unit(self, unit: Unit) -> Self {
        Self { unit: Some(Written(unit)), ..self }
    }

    /// Reads the window from this header, in seconds or with a unit, as in `60` and `1m`. A single window applies to
    /// all quotas of a list. It takes precedence over [`with_window`](Self::with_window).
    pub fn with_window_header(self, name: HeaderName) -> Self {
        Self { window_header: Some(Written(name)), ..self }
    }

    /// Sets the window that the service documents. It applies if no header states the reset or the window.
    pub fn with_window(self, window: Duration) -> Self {
        Self { window: Some(Written(window)), ..self }
    }

    /// Returns the headers, each with the field that it states.
    fn fields(&self) -> impl Iterator<Item = (&HeaderName, Field)> {
        let used = if self.limit.is_some() { Field::Used } else { Field::UsedOfLimit };
        let fields = [
            (&self.remaining, Field::Remaining),
            (&self.used, used),
            (&self.reset, Field::Reset),
            (&self.limit, Field::Limit),
            (&self.resource, Field::Scope),
            (&self.window_header, Field::Window),
        ];
        fields.into_iter().filter_map(|(name, field)| Some((&name.as_ref()?.0, field)))
    }

    /// Returns the field that a header states.
    pub(in crate::policy) fn field(&self, name: &HeaderName) -> Option<Field> {
        self.fields().find_map(|(known, field)| (known == name).then_some(field))
    }

    /// Returns how the headers are read.
    pub(super) fn row(&self) -> Row<'_> {
        let name = self.remaining.as_ref().or(self.used.as_ref()).map_or("", |Written(name)| name.as_str());
        let unit = self.unit.map_or(Unit::Requests, |Written(unit)| unit);
        let window = self.window.map(|Written(window)| window);
        Row { name: name.into(), unit, window, is_form: false }
    }

    /// Returns an error if a header has two meanings or is never read, or if a quota can never be read.
    pub(crate) fn check(all: &[Self]) -> Result<(), InvalidConfig> {
        if let Some(one) = all.iter().find(|one| one.remaining.is_some() == one.used.is_some()) {
            let value = if one.used.is_some() { "both" } else { "none" };
            return Err(InvalidConfig::new("quota", value, "either `remaining` or `used`"));
        }
        let mut names: Vec<_> = all.iter().flat_map(Self::fields).map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let expected = "a header that appears only once in the dialect";
            return Err(InvalidConfig::new("quota header", pair[0].to_owned(), expected));
        }
        let invalid = all.iter().find_map(|one| Some((one.row().name.into_owned(), one.missing()?)));
        invalid.map_or(Ok(()), |(name, expected)| Err(InvalidConfig::new("quota header", name, expected)))
    }

    /// Returns the requirement that the quota violates.
    fn missing(&self) -> Option<&'static str> {
        let states_limit = self.used.is_some() && self.limit.is_none();
        match self.window {
            Some(Written(window)) if window.is_zero() => Some("a window of more than zero"),
            Some(_) if states_limit && self.fields().count() > 1 => {
                Some("a header with the limit, because the quota has other headers")
            }
            Some(_) => None,
            None if states_limit => {
                Some("a header with the limit, or a documented window and no other header")
            }
            None if self.reset.is_some() || self.window_header.is_some() => None,
            None => Some("a header with the reset or the window, or a documented window"),
        }
    }
}
