use std::time::Duration;

use http::HeaderName;

use super::{
    list::Unit,
    rows::{Field, Row},
};
use crate::config::InvalidConfig;

/// The headers in which a service reports the remaining permits of one quota.
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
/// Permits are numbers. A reset is a duration or a moment: seconds with or without a fraction, a Unix time in seconds or
/// milliseconds, `1m30s`, an HTTP-date, or a time of RFC 3339. A header may contain a comma-separated list, in which
/// each member belongs to another quota.
///
/// Without a header that states the reset, more permits are expected after the [window](Self::with_window). A quota with
/// neither is ignored.
#[derive(Debug, Clone)]
pub struct QuotaHeaders {
    pub(super) row: Row,
    pub(super) fields: Vec<(HeaderName, Field)>,
}

impl QuotaHeaders {
    /// Reads the remaining permits from the header `remaining`.
    pub fn new(remaining: HeaderName) -> Self {
        let row = Row { name: remaining.to_string(), unit: Unit::Requests, window: None, is_form: false };
        Self { row, fields: vec![(remaining, Field::Remaining)] }
    }

    /// Reads from this header when more permits become available.
    pub fn with_reset(self, name: HeaderName) -> Self {
        self.with(name, Field::Reset)
    }

    /// Reads from this header how many permits each window has.
    pub fn with_limit(self, name: HeaderName) -> Self {
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

    /// Sets the window that the service documents. It applies if no header states the reset.
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

    /// Returns an error if a header has two meanings, or if a quota can never be read.
    pub(crate) fn check(all: &[Self]) -> Result<(), InvalidConfig> {
        let mut names: Vec<_> = all.iter().flat_map(|one| one.fields.iter().map(|(name, _)| name)).collect();
        names.sort_unstable_by_key(|name| name.as_str());
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let expected = "a header that appears only once in the dialect";
            return Err(InvalidConfig::new("quota header", pair[0].to_string(), expected));
        }
        let has_reset = |one: &Self| one.fields.iter().any(|(_, field)| *field == Field::Reset);
        match all.iter().find(|one| one.row.window.is_none() && !has_reset(one)) {
            Some(one) => {
                let expected = "a header with the reset, or a window, for this quota";
                Err(InvalidConfig::new("quota header", one.row.name.clone(), expected))
            }
            None => Ok(()),
        }
    }
}
