//! The headers in which services report their quotas. A service is a row.

use std::{borrow::Cow, sync::LazyLock, time::Duration};

use super::list::Unit;

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
        table.rows.push(Row { name, unit, window: window.map(Duration::from_secs), is_form: place < FORMS });
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
