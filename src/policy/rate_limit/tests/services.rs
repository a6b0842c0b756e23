//! Tests of the headers of single services, as their documentation and their users show them.

use std::time::Duration;

use super::{Lines, Unit, list};

/// The unit, the remaining permits, the seconds until more are available, the limit and the seconds of the window.
type Quota = (Unit, u64, f64, Option<u64>, Option<u64>);

/// Returns the quotas in the headers of a response that was sent at 2026-01-01T01:00:00Z.
fn read(lines: Lines<'_>) -> Vec<Quota> {
    let date = ("date", "Thu, 01 Jan 2026 01:00:00 GMT");
    let lines: Vec<_> = lines.iter().copied().chain([date]).collect();
    let seconds = |window: Option<Duration>| window.map(|window| window.as_secs());
    let quotas = list(&lines).into_iter();
    quotas
        .map(|one| {
            (one.unit(), one.left(), one.reset_after().as_secs_f64(), one.limit(), seconds(one.window()))
        })
        .collect()
}

#[test]
fn reads_the_headers_of_every_service() {
    use Unit::{InputTokens, Points, Requests, Tokens};
    type Case<'a> = (&'a str, Lines<'a>, &'a [Quota]);
    let cases: [Case<'_>; 24] = [
        (
            "GitHub",
            &[
                ("x-ratelimit-limit", "30"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-used", "30"),
                ("x-ratelimit-reset", "1767229500"),
                ("x-ratelimit-resource", "search"),
            ],
            &[(Requests, 0, 300.0, Some(30), None)],
        ),
        (
            "GitLab",
            &[
                ("ratelimit-limit", "600"),
                ("ratelimit-observed", "6"),
                ("ratelimit-remaining", "594"),
                ("ratelimit-reset", "1767229260"),
                ("ratelimit-resettime", "Thu, 01 Jan 2026 01:01:00 GMT"),
            ],
            &[(Requests, 594, 60.0, Some(600), None)],
        ),
        (
            "X, Okta",
            &[
                ("x-rate-limit-limit", "900"),
                ("x-rate-limit-remaining", "847"),
                ("x-rate-limit-reset", "1767229500"),
            ],
            &[(Requests, 847, 300.0, Some(900), None)],
        ),
        (
            "Zendesk",
            &[("x-rate-limit", "700"), ("x-rate-limit-remaining", "699")],
            &[(Requests, 699, 60.0, Some(700), Some(60))],
        ),
        (
            "OpenAI",
            &[
                ("x-ratelimit-limit-requests", "5000"),
                ("x-ratelimit-remaining-requests", "4999"),
                ("x-ratelimit-reset-requests", "12ms"),
                ("x-ratelimit-limit-tokens", "160000"),
                ("x-ratelimit-remaining-tokens", "159976"),
                ("x-ratelimit-reset-tokens", "6m0s"),
            ],
            &[(Requests, 4_999, 0.012, Some(5_000), None), (Tokens, 159_976, 360.0, Some(160_000), None)],
        ),
        (
            "Azure OpenAI",
            &[("x-ratelimit-remaining-tokens", "-27689"), ("x-ratelimit-reset-tokens", "64")],
            &[(Tokens, 0, 64.0, None, None)],
        ),
        (
            "Groq",
            &[("x-ratelimit-remaining-requests", "14370"), ("x-ratelimit-reset-requests", "2m52.8s")],
            &[(Requests, 14_370, 172.8, None, None)],
        ),
        (
            "Anthropic",
            &[
                ("anthropic-ratelimit-requests-limit", "600"),
                ("anthropic-ratelimit-requests-remaining", "0"),
                ("anthropic-ratelimit-requests-reset", "2026-01-01T01:00:25Z"),
                ("anthropic-ratelimit-input-tokens-remaining", "80000"),
                ("anthropic-ratelimit-input-tokens-reset", "2026-01-01T01:00:05Z"),
            ],
            &[(Requests, 0, 25.0, Some(600), None), (InputTokens, 80_000, 5.0, None, None)],
        ),
        (
            "Discord",
            &[
                ("x-ratelimit-limit", "10"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1767229264.57"),
                ("x-ratelimit-reset-after", "64.5"),
                ("x-ratelimit-bucket", "abcd1234"),
            ],
            &[(Requests, 0, 64.5, Some(10), None)],
        ),
        (
            "Jira",
            &[
                ("x-ratelimit-limit", "350"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "2026-01-01T01:01:01Z"),
                ("ratelimit-reason", "jira-burst-based"),
                ("beta-ratelimit-policy", "\"global-app-quota\";q=65000;w=3600"),
                ("beta-ratelimit", "\"global-app-quota\";r=11000;t=600"),
            ],
            &[(Requests, 0, 61.0, Some(350), None), (Points, 11_000, 600.0, Some(65_000), Some(3_600))],
        ),
        ("Jira, far from the limit", &[("ratelimit", "\"global-app-quota\";t=3200")], &[]),
        (
            "HubSpot",
            &[
                ("x-hubspot-ratelimit-max", "100"),
                ("x-hubspot-ratelimit-remaining", "98"),
                ("x-hubspot-ratelimit-interval-milliseconds", "10000"),
                ("x-hubspot-ratelimit-daily", "250000"),
                ("x-hubspot-ratelimit-daily-remaining", "249998"),
                ("x-hubspot-ratelimit-secondly", "10"),
            ],
            &[
                (Requests, 98, 10.0, Some(100), Some(10)),
                (Requests, 249_998, 86_400.0, Some(250_000), Some(86_400)),
            ],
        ),
        (
            "Brevo",
            &[
                ("x-sib-ratelimit-limit", "1000"),
                ("x-sib-ratelimit-remaining", "1"),
                ("x-sib-ratelimit-reset", "3"),
            ],
            &[(Requests, 1, 3.0, Some(1_000), None)],
        ),
        (
            "Linear",
            &[
                ("x-ratelimit-requests-remaining", "0"),
                ("x-ratelimit-requests-reset", "1767229260000"),
                ("x-ratelimit-complexity-remaining", "5"),
                ("x-ratelimit-complexity-reset", "1767229201000"),
            ],
            &[(Requests, 0, 60.0, None, None), (Points, 5, 1.0, None, None)],
        ),
        (
            "RapidAPI",
            &[("x-ratelimit-requests-remaining", "205676"), ("x-ratelimit-requests-reset", "2163603")],
            &[(Requests, 205_676, 2_163_603.0, None, None)],
        ),
        ("Shopify", &[("x-shopify-shop-api-call-limit", "39/40")], &[(Requests, 1, 0.5, Some(40), Some(20))]),
        (
            "Salesforce",
            &[("sforce-limit-info", "api-usage=10018/100000; api-bursts=1/750")],
            &[(Requests, 89_982, 86_400.0, Some(100_000), Some(86_400))],
        ),
        (
            "Auth0",
            &[("auth0-client-quota-limit", "b=per_hour;q=100;r=90;t=3600,b=per_day;q=1000;r=950;t=86400")],
            &[(Requests, 90, 3_600.0, Some(100), None), (Requests, 950, 86_400.0, Some(1_000), None)],
        ),
        (
            "Reddit",
            &[("x-ratelimit-used", "43"), ("x-ratelimit-remaining", "57.0"), ("x-ratelimit-reset", "312")],
            &[(Requests, 57, 312.0, None, None)],
        ),
        (
            "Resend",
            &[("ratelimit-limit", "2"), ("ratelimit-remaining", "1"), ("ratelimit-reset", "1")],
            &[(Requests, 1, 1.0, Some(2), None)],
        ),
        (
            "Cloudflare",
            &[("ratelimit", "\"default\";r=50;t=30"), ("ratelimit-policy", "\"default\";q=100;w=60")],
            &[(Requests, 50, 30.0, Some(100), Some(60))],
        ),
        (
            "Brave, without a limit per month",
            &[
                ("x-ratelimit-limit", "50, 0"),
                ("x-ratelimit-policy", "50;w=1, 0;w=2678400"),
                ("x-ratelimit-remaining", "49, 0"),
                ("x-ratelimit-reset", "1, 2462826"),
            ],
            &[(Requests, 49, 1.0, Some(50), Some(1))],
        ),
        (
            "Tyk, without a limit",
            &[("x-ratelimit-limit", "0"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "0")],
            &[],
        ),
        (
            "Tyk, without a limit, in front of X",
            &[
                ("x-ratelimit-limit", "-1"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1767231000"),
                ("x-rate-limit-limit", "900"),
                ("x-rate-limit-remaining", "847"),
                ("x-rate-limit-reset", "1767229500"),
            ],
            &[(Requests, 847, 300.0, Some(900), None)],
        ),
    ];
    for (service, lines, expected) in cases {
        assert_eq!(read(lines), expected, "{service}");
    }
}

#[test]
fn quotas_of_different_resources_have_different_ids() {
    let of = |scope: &[(&'static str, &'static str)]| {
        let all = [("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "1")];
        let lines: Vec<_> = all.iter().chain(scope).copied().collect();
        list(&lines)[0].policy()
    };
    let mut ids = vec![
        of(&[]),
        of(&[("x-ratelimit-resource", "core")]),
        of(&[("x-ratelimit-resource", "search")]),
        of(&[("x-ratelimit-bucket", "abcd")]),
        of(&[("ratelimit-reason", "jira-burst-based")]),
    ];
    assert_eq!(ids[1], of(&[("x-ratelimit-resource", "core")]));
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 5);
}

#[test]
fn quota_has_the_name_of_its_resource_or_policy_or_else_of_its_header() {
    let github = [("x-ratelimit-remaining", "9"), ("x-ratelimit-reset", "9")];
    for (lines, names) in [
        (&[&github[..], &[("x-ratelimit-resource", "core")]].concat()[..], &["core"][..]),
        (&github, &["x-ratelimit-remaining"]),
        (&[("ratelimit", r#""burst";r=1;t=9, day;r=2;t=9"#)], &["burst", "day"]),
        (&[("ratelimit", "remaining=9, reset=4")], &["ratelimit"]),
        (
            &[("anthropic-ratelimit-tokens-remaining", "0"), ("anthropic-ratelimit-tokens-reset", "9")],
            &["anthropic-ratelimit-tokens-remaining"],
        ),
        (
            &[("auth0-client-quota-limit", "b=per_hour;q=9;r=1;t=9,q=9;r=2;t=9")],
            &["per_hour", "auth0-client-quota-limit"],
        ),
        (&[("x-shopify-shop-api-call-limit", "39/40")], &["x-shopify-shop-api-call-limit"]),
    ] {
        let found: Vec<_> = list(lines).iter().map(|quota| quota.name().as_str().to_owned()).collect();
        assert_eq!(found, names, "{lines:?}");
    }
}
