use std::time::Duration;

use http::HeaderName;

use super::{
    list::Unit,
    rows::{Field, Row},
};
use crate::config::InvalidConfig;

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
/// quota without any of the three.
#[derive(Debug, Clone)]
pub struct QuotaHeaders {
    pub(super) row: Row,
    pub(super) fields: Vec<(HeaderName, Field)>,
}

impl QuotaHeaders {
    /// Reads the remaining permits from the header `remaining`.
    pub fn new(remaining: HeaderName) -> Self {
        Self::of(remaining, Field::Remaining)
    }

    /// Reads the used permits from the header `used`, and the limit from the header of
    /// [`with_limit`](Self::with_limit). Without a header with the limit, `used` states both, as in `32/40`. The
    /// service is then expected to refill its permits evenly over the [window](Self::with_window). The window is
    /// required, and no other header is allowed.
    pub fn of_used(used: HeaderName) -> Self {
        Self::of(used, Field::UsedOfLimit)
    }

    fn of(name: HeaderName, field: Field) -> Self {
        let row = Row { name: name.to_string(), unit: Unit::Requests, window: None, is_form: false };
        Self { row, fields: vec![(name, field)] }
    }

    /// Reads from this header when more permits become available.
    pub fn with_reset(self, name: HeaderName) -> Self {
        self.with(name, Field::Reset)
    }

    /// Reads from this header how many permits each window has.
    pub fn with_limit(mut self, name: HeaderName) -> Self {
        let used = self.fields.iter_mut().filter(|(_, field)| *field == Field::UsedOfLimit);
        used.for_each(|(_, field)| *field = Field::Used);
        self.with(name, Field::Limit)
    }

    /// Reads from this header to which resource the quota belongs. Quotas of different resources are different quotas.
    pub fn with_resource(self, name: HeaderName) -> Self {
        self.with(name, Field::Scope)
    }

    /// Sets what the quota counts. Default: requests. A limiter applies only quotas of requests to its rate.
    pub fn with_unit(mut self, unit: Unit) -> Self {
        self.row.unit = unit;
        self
    }

    /// Reads the window from this header, in seconds or with a unit, as in `60` and `1m`. A single window applies to
    /// all quotas of a list. It takes precedence over [`with_window`](Self::with_window).
    pub fn with_window_header(self, name: HeaderName) -> Self {
        self.with(name, Field::Window)
    }

    /// Sets the window that the service documents. It applies if no header states the reset or the window.
    pub fn with_window(mut self, window: Duration) -> Self {
        self.row.window = Some(window);
        self
    }

    fn with(mut self, name: HeaderName, field: Field) -> Self {
        self.fields.push((name, field));
        self
    }

    /// Returns what a header states.
    pub(in crate::policy) fn field(&self, name: &HeaderName) -> Option<Field> {
        self.fields.iter().find_map(|(known, field)| (known == name).then_some(*field))
    }

    /// Returns an error if a header has two meanings or is never read, or if a quota can never be read.
    pub(crate) fn check(all: &[Self]) -> Result<(), InvalidConfig> {
        let mut names: Vec<_> = all.iter().flat_map(|one| one.fields.iter().map(|(name, _)| name)).collect();
        names.sort_unstable_by_key(|name| name.as_str());
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let expected = "a header that appears only once in the dialect";
            return Err(InvalidConfig::new("quota header", pair[0].to_string(), expected));
        }
        let invalid = all.iter().find_map(|one| Some((one, one.missing()?)));
        invalid.map_or(Ok(()), |(one, expected)| {
            Err(InvalidConfig::new("quota header", one.row.name.clone(), expected))
        })
    }

    /// Returns the requirement that the quota violates.
    fn missing(&self) -> Option<&'static str> {
        let has = |field| self.fields.iter().any(|(_, known)| *known == field);
        match self.row.window {
            Some(window) if window.is_zero() => Some("a window of more than zero"),
            Some(_) if has(Field::UsedOfLimit) && self.fields.len() > 1 => {
                Some("a header with the limit, because the quota has other headers")
            }
            Some(_) => None,
            None if has(Field::UsedOfLimit) => {
                Some("a header with the limit, or a documented window and no other header")
            }
            None if has(Field::Reset) || has(Field::Window) => None,
            None => Some("a header with the reset or the window, or a documented window"),
        }
    }
}
