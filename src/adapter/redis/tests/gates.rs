//! Tests which remaining permits of the service are reported to the store.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::*;

fn complete(permit: limit::Permit<'_>, status: u16, fields: &[(&'static str, &'static str)]) {
    let fields =
        fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let headers = HeaderMap::from_iter(fields);
    permit.complete(&limit::ResponseInfo::new(StatusCode::from_u16(status).unwrap(), &headers));
}

/// Returns the remaining permits of each policy that the next query reports.
fn gates(limiter: &RedisLimiter) -> Vec<u64> {
    limiter.inner.inspect(|permits, _| permits.session.updates.gates.iter().map(|gate| gate.left).collect())
}

#[tokio::test(start_paused = true)]
async fn redis_limiter_reports_no_quota_of_tokens_unless_it_caused_a_rejection() {
    for (status, reported) in [(200, vec![3]), (429, vec![0, 3])] {
        let (limiter, _) = scripted(limiter(), millis(10), grant_all);
        let fields = [
            ("x-ratelimit-remaining-requests", "3"),
            ("x-ratelimit-reset-requests", "60s"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-tokens", "1s"),
        ];
        let permit = limiter.acquire_with(&bounded(None)).await.unwrap();
        complete(permit, status, &fields);
        let mut left = gates(&limiter);
        left.sort_unstable();
        assert_eq!(left, reported, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn policy_keeps_its_fewest_remaining_permits_until_its_reset() {
    let (limiter, _) = scripted(limiter(), millis(10), grant_all);
    let mut permits = Vec::new();
    for _ in 0..4 {
        permits.push(limiter.acquire_with(&bounded(None)).await.unwrap());
    }
    // The permits that are still in flight are subtracted.
    let mut report = |value, left| {
        complete(permits.pop().unwrap(), 200, &[("ratelimit", value)]);
        assert_eq!(gates(&limiter), [left], "{value}");
    };
    report("\"d\";r=9;t=30", 6);
    report("\"d\";r=2;t=20", 0);
    report("\"d\";r=9;t=30", 0);
    time::advance(Duration::from_secs(31)).await;
    report("\"d\";r=9;t=30", 9);
}

/// Salesforce accepts requests beyond its quota.
#[tokio::test(start_paused = true)]
async fn redis_limiter_reports_no_empty_quota_after_the_service_has_accepted_a_probe() {
    let (limiter, _) = scripted(limiter(), millis(10), grant_all);
    for reported in [&[0][..], &[], &[]] {
        let mut permit = limiter.acquire_with(&bounded(None)).await.unwrap();
        permit.mark_sent(Instant::now());
        complete(permit, 200, &[("sforce-limit-info", "api-usage=100010/100000")]);
        assert_eq!(gates(&limiter), reported);
        time::sleep(millis(100)).await;
        time::advance(Duration::from_secs(3_600)).await;
    }
}
