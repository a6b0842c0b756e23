//! Tests the rate-limit headers of `ServerLimit`, and what the crate reads from them.

use tower_outbound::{
    limit::ResponseInfo,
    test_util::{LimitHeaders, ServerLimit},
};

use super::*;

/// The headers of the responses to two requests, each with the quota and the delay that a limiter reads from them. The
/// server accepts two requests in 60 s. The first request is accepted, and the third, 10 s later, is rejected.
type Row = (LimitHeaders, &'static str, &'static str, &'static str, &'static str);

const ROWS: [Row; 13] = [
    (LimitHeaders::None, "", "", "", ""),
    (LimitHeaders::RetryAfter, "", "", "retry-after: 50", "pause 50s"),
    (
        LimitHeaders::XRateLimit,
        "x-ratelimit-limit: 2 | x-ratelimit-remaining: 1 | x-ratelimit-reset: 60",
        "1 of 2 for 60s",
        "x-ratelimit-limit: 2 | x-ratelimit-remaining: 0 | x-ratelimit-reset: 50",
        "0 of 2 for 50s",
    ),
    (
        LimitHeaders::XRateLimitEpoch,
        "x-ratelimit-limit: 2 | x-ratelimit-remaining: 1 | x-ratelimit-reset: 1700000061 | \
         date: Tue, 14 Nov 2023 22:13:20 GMT",
        "1 of 2 for 61s",
        "x-ratelimit-limit: 2 | x-ratelimit-remaining: 0 | x-ratelimit-reset: 1700000061 | \
         date: Tue, 14 Nov 2023 22:13:30 GMT",
        "0 of 2 for 51s",
    ),
    (
        LimitHeaders::Draft7,
        "ratelimit: limit=2, remaining=1, reset=60",
        "1 of 2 for 60s",
        "ratelimit: limit=2, remaining=0, reset=50",
        "0 of 2 for 50s",
    ),
    (
        LimitHeaders::Draft10,
        r#"ratelimit: "default";r=1;t=0 | ratelimit-policy: "default";q=2;w=60"#,
        "1 of 2 for 0ns",
        r#"ratelimit: "default";r=0;t=50 | ratelimit-policy: "default";q=2;w=60"#,
        "0 of 2 for 50s",
    ),
    (
        LimitHeaders::OpenAi,
        "x-ratelimit-limit-requests: 2 | x-ratelimit-remaining-requests: 1 | \
         x-ratelimit-reset-requests: 1m0s",
        "1 of 2 for 60s",
        "x-ratelimit-limit-requests: 2 | x-ratelimit-remaining-requests: 0 | \
         x-ratelimit-reset-requests: 0m50s | retry-after-ms: 50000",
        "0 of 2 for 50s, pause 50s",
    ),
    (
        LimitHeaders::Anthropic,
        "anthropic-ratelimit-requests-limit: 2 | anthropic-ratelimit-requests-remaining: 1 | \
         anthropic-ratelimit-requests-reset: 2023-11-14T22:14:21Z | \
         date: Tue, 14 Nov 2023 22:13:20 GMT",
        "1 of 2 for 61s",
        "anthropic-ratelimit-requests-limit: 2 | anthropic-ratelimit-requests-remaining: 0 | \
         anthropic-ratelimit-requests-reset: 2023-11-14T22:14:21Z | \
         date: Tue, 14 Nov 2023 22:13:30 GMT | retry-after: 50",
        "0 of 2 for 51s, pause 50s",
    ),
    (
        LimitHeaders::GitHub,
        "x-ratelimit-limit: 2 | x-ratelimit-remaining: 1 | x-ratelimit-reset: 1700000061 | \
         x-ratelimit-used: 1 | x-ratelimit-resource: core | date: Tue, 14 Nov 2023 22:13:20 GMT",
        "1 of 2 for 61s",
        "x-ratelimit-limit: 2 | x-ratelimit-remaining: 0 | x-ratelimit-reset: 1700000061 | \
         x-ratelimit-used: 2 | x-ratelimit-resource: core | date: Tue, 14 Nov 2023 22:13:30 GMT",
        "0 of 2 for 51s",
    ),
    // The crate expects that a full bucket refills in 20 s.
    (
        LimitHeaders::Shopify,
        "x-shopify-shop-api-call-limit: 1/2",
        "1 of 2 for 10s",
        "x-shopify-shop-api-call-limit: 2/2 | retry-after: 50.0",
        "0 of 2 for 10s, pause 50s",
    ),
    (
        LimitHeaders::Discord,
        "x-ratelimit-limit: 2 | x-ratelimit-remaining: 1 | x-ratelimit-reset: 1700000060.37 | \
         x-ratelimit-reset-after: 60 | x-ratelimit-bucket: abcd1234 | \
         date: Tue, 14 Nov 2023 22:13:20 GMT",
        "1 of 2 for 60s",
        "x-ratelimit-limit: 2 | x-ratelimit-remaining: 0 | x-ratelimit-reset: 1700000060.37 | \
         x-ratelimit-reset-after: 50 | x-ratelimit-bucket: abcd1234 | \
         date: Tue, 14 Nov 2023 22:13:30 GMT | retry-after: 50",
        "0 of 2 for 50s, pause 50s",
    ),
    (
        LimitHeaders::Jira,
        "x-ratelimit-limit: 2 | x-ratelimit-remaining: 1 | x-ratelimit-reset: 2023-11-14T22:14:21Z | \
         date: Tue, 14 Nov 2023 22:13:20 GMT",
        "1 of 2 for 61s",
        "x-ratelimit-limit: 2 | x-ratelimit-remaining: 0 | x-ratelimit-reset: 2023-11-14T22:14:21Z | \
         ratelimit-reason: jira-burst-based | date: Tue, 14 Nov 2023 22:13:30 GMT | retry-after: 50",
        "0 of 2 for 51s, pause 50s",
    ),
    (
        LimitHeaders::HubSpot,
        "x-hubspot-ratelimit-max: 2 | x-hubspot-ratelimit-remaining: 1 | \
         x-hubspot-ratelimit-interval-milliseconds: 60000",
        "1 of 2 for 60s",
        "x-hubspot-ratelimit-max: 2 | x-hubspot-ratelimit-remaining: 0 | \
         x-hubspot-ratelimit-interval-milliseconds: 60000",
        "0 of 2 for 60s",
    ),
];

#[test]
fn server_limit_sends_the_headers_of_each_service_and_the_crate_reads_them() {
    for (kind, first, read_of_first, third, read_of_third) in ROWS {
        let server = ServerLimit::fixed_window(2, secs(60)).with_headers(kind);
        let responses = [0, 0, 10].map(|at| server.respond_at(secs(at)));
        assert_eq!(responses.each_ref().map(|response| response.status().as_u16()), [200, 200, 429]);
        for (response, headers, read) in
            [(&responses[0], first, read_of_first), (&responses[2], third, read_of_third)]
        {
            let fields = response.headers().iter();
            let sent: Vec<_> =
                fields.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
            assert_eq!(sent.join(" | "), headers, "{kind:?}");
            let info = ResponseInfo::new(response.status(), response.headers());
            let quotas = info.remaining().iter().map(|quota| {
                format!("{} of {} for {:?}", quota.left(), quota.limit().unwrap(), quota.reset_after())
            });
            let pause = info.requested_pause().map(|pause| format!("pause {pause:?}"));
            assert_eq!(quotas.chain(pause).collect::<Vec<_>>().join(", "), read, "{kind:?}: {headers}");
        }
    }
}
