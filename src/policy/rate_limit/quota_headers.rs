//! The headers in which services report their quotas. A service is a row.

use std::{borrow::Cow, sync::LazyLock, time::Duration};

use http::HeaderName;

use super::remaining::Unit;
use crate::{
    config::{InvalidConfig, text::Written},
    policy::moment::Scale,
};

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
    #[cfg_attr(feature = "serde", serde(default))]
    millis: bool,
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

    /// Reads the reset and the window in milliseconds if they are numbers without a unit. A Unix time is then in
    /// milliseconds, too. Default: seconds, and Unix times in seconds or milliseconds.
    pub fn with_millis(self) -> Self {
        Self { millis: true, ..self }
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
        let scale = if self.millis { Scale::Millis } else { Scale::Seconds };
        Row { name: name.into(), unit, window, scale, is_form: false }
    }

    /// Returns an error if a header has two meanings or is never read, or if a quota can never be read. The `added`
    /// header is the last one, and `others` are the dialect's headers of delays.
    pub(crate) fn check<'a>(
        added: &'static str,
        all: &'a [Self],
        others: impl Iterator<Item = &'a HeaderName>,
    ) -> Result<(), InvalidConfig> {
        if let Some(one) = all.iter().find(|one| one.remaining.is_some() == one.used.is_some()) {
            let value = if one.used.is_some() { "both" } else { "none" };
            return Err(InvalidConfig::new("quota", value, "either `remaining` or `used`"));
        }
        let of_quotas = all.iter().flat_map(Self::fields).map(|(name, _)| name);
        let mut names: Vec<_> = of_quotas.chain(others).map(HeaderName::as_str).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let expected = "a header that appears only once in the dialect";
            return Err(InvalidConfig::new(added, pair[0].to_owned(), expected));
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

/// The meaning of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::policy) enum Field {
    /// The remaining permits, as a number or a list of numbers.
    Remaining,
    Limit,
    /// The used permits, which determine the remaining ones if no other header does.
    Used,
    /// When more permits become available: any form of [`until`](crate::policy::moment::until).
    Reset,
    /// The same, but more precise than `Reset`.
    ResetAfter,
    Window,
    /// The window in milliseconds.
    WindowMillis,
    /// The windows of the limits, as in `100;w=60`.
    Windows,
    /// A name that distinguishes this quota from others that use the same headers.
    Scope,
    /// The used permits and the limit, as in `32/40`.
    UsedOfLimit,
    /// Quotas as lists of parameters, as in `b=per_hour;q=100;r=90;t=3600` or `api-usage=18/1000`.
    Lists,
    /// Quotas as structured fields, as in `"burst";r=50;t=30`, or one quota as in `limit=10, remaining=9, reset=4`.
    Structured,
    /// The limits and windows of `Structured`.
    Policies,
}

/// How the headers of one quota, or of one list of quotas, are read.
#[derive(Debug, Clone)]
pub(super) struct Row<'a> {
    /// Part of the identity of its quotas.
    pub(super) name: Cow<'a, str>,
    pub(super) unit: Unit,
    /// The window, if the headers state neither it nor a reset, and the service documents it.
    pub(super) window: Option<Duration>,
    /// The unit of a reset or a window without one.
    pub(super) scale: Scale,
    /// Whether the row reports the same quotas as the other rows of this kind, so that the first valid one is read.
    pub(super) is_form: bool,
}

/// The text before and after `remaining`, `reset` and `limit` in the names of three headers, the unit, the seconds of
/// the window, and other headers.
type Service = (&'static str, &'static str, Unit, Option<u64>, &'static [(&'static str, Field)]);

/// The number of forms, at the start of [`SERVICES`].
const FORMS: usize = 4;

/// The services in the order of their precedence.
const SERVICES: [Service; 22] = {
    use Field::{
        Limit, Lists, Policies, ResetAfter, Scope, Structured, Used, UsedOfLimit, WindowMillis, Windows,
    };
    use Unit::{InputTokens, OutputTokens, Points, Requests, Tokens};
    [
        // draft-ietf-httpapi-ratelimit-headers -07 to -11. monday.com and Cloudflare send them.
        ("", "", Requests, None, &[("ratelimit", Structured), ("ratelimit-policy", Policies)]),
        // The draft up to -06. GitLab, Resend and Kong send them.
        ("ratelimit-", "", Requests, None, &[("ratelimit-policy", Windows)]),
        // No specification defines these headers. GitHub, Discord, Reddit, Brave, Jira and many others send them.
        (
            "x-ratelimit-",
            "",
            Requests,
            None,
            &[
                ("x-ratelimit-reset-after", ResetAfter),
                ("x-ratelimit-used", Used),
                ("x-ratelimit-policy", Windows),
                ("x-ratelimit-resource", Scope),
                ("x-ratelimit-bucket", Scope),
                ("ratelimit-reason", Scope),
            ],
        ),
        // X and Okta. Zendesk reports no reset, and documents limits per minute.
        ("x-rate-limit-", "", Requests, Some(60), &[("x-rate-limit", Limit)]),
        // Jira and Confluence, beside the headers of single endpoints.
        ("", "", Points, None, &[("beta-ratelimit", Structured), ("beta-ratelimit-policy", Policies)]),
        // OpenAI, Azure OpenAI and Groq.
        ("x-ratelimit-", "-requests", Requests, None, &[]),
        ("x-ratelimit-", "-tokens", Tokens, None, &[]),
        ("anthropic-ratelimit-requests-", "", Requests, None, &[]),
        ("anthropic-ratelimit-tokens-", "", Tokens, None, &[]),
        ("anthropic-ratelimit-input-tokens-", "", InputTokens, None, &[]),
        ("anthropic-ratelimit-output-tokens-", "", OutputTokens, None, &[]),
        // Brevo.
        ("x-sib-ratelimit-", "", Requests, None, &[]),
        (
            "x-hubspot-ratelimit-",
            "",
            Requests,
            None,
            &[
                ("x-hubspot-ratelimit-max", Limit),
                ("x-hubspot-ratelimit-interval-milliseconds", WindowMillis),
            ],
        ),
        ("x-hubspot-ratelimit-daily-", "", Requests, Some(86_400), &[("x-hubspot-ratelimit-daily", Limit)]),
        ("x-hubspot-ratelimit-secondly-", "", Requests, Some(1), &[("x-hubspot-ratelimit-secondly", Limit)]),
        // Linear, with a reset in Unix milliseconds, and RapidAPI, with a reset in seconds.
        ("x-ratelimit-requests-", "", Requests, None, &[]),
        // Linear.
        ("x-ratelimit-endpoint-requests-", "", Requests, None, &[("x-ratelimit-endpoint-name", Scope)]),
        ("x-ratelimit-complexity-", "", Points, None, &[]),
        // RapidAPI.
        ("x-ratelimit-api-units-", "", Points, None, &[]),
        // A bucket of 40 that leaks 2 per second, or a larger one that leaks faster, so that each is empty after 20 s.
        ("", "", Requests, Some(20), &[("x-shopify-shop-api-call-limit", UsedOfLimit)]),
        // Salesforce counts the requests of 24 hours.
        ("", "", Requests, Some(86_400), &[("sforce-limit-info", Lists)]),
        ("", "", Requests, None, &[("auth0-client-quota-limit", Lists)]),
    ]
};

/// The rows, and the sorted names of all headers with their rows and fields.
struct Table {
    rows: Vec<Row<'static>>,
    index: Vec<(String, usize, Field)>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table { rows: Vec::new(), index: Vec::new() };
    for (place, (before, after, unit, window, others)) in SERVICES.into_iter().enumerate() {
        let known = [("remaining", Field::Remaining), ("reset", Field::Reset), ("limit", Field::Limit)];
        let known = known.iter().filter(|_| !before.is_empty());
        let names = known.map(|(name, field)| (format!("{before}{name}{after}"), *field));
        let names: Vec<_> =
            names.chain(others.iter().map(|(name, field)| ((*name).to_owned(), *field))).collect();
        let name = names.first().map_or(String::new(), |(name, _)| name.clone()).into();
        let (window, scale) = (window.map(Duration::from_secs), Scale::Seconds);
        table.rows.push(Row { name, unit, window, scale, is_form: place < FORMS });
        table.index.extend(names.into_iter().map(|(name, field)| (name, place, field)));
    }
    table.index.sort_unstable_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
    table
});

/// Returns the rows that read a header, and what it states.
pub(super) fn of_header(name: &str) -> impl Iterator<Item = (usize, Field)> {
    let index = &TABLE.index;
    let first = index.partition_point(|(known, ..)| known.as_str() < name);
    let same = index[first..].iter().take_while(move |(known, ..)| known == name);
    same.map(|(_, row, field)| (*row, *field))
}

pub(super) fn row(place: usize) -> &'static Row<'static> {
    &TABLE.rows[place]
}

/// Returns the names of all headers.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.index.iter().map(|(name, ..)| name.as_str())
}
