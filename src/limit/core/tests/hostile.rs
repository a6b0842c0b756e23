//! Random rate-limit headers of a hostile server, from bytes to grants.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::{limit::ResponseInfo, policy::rate_limit};

const WINDOW_LENGTH: u64 = SECOND;
/// The longest pause in these tests. It exceeds each pause without a delay.
const LONGEST: u64 = 600 * SECOND;

const NAMES: [&str; 15] = [
    "retry-after",
    "retry-after-ms",
    "x-ms-retry-after-ms",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "grpc-status",
    "grpc-retry-pushback-ms",
    "date",
    "age",
];

const DATES: [&str; 3] =
    ["Sun, 06 Nov 1994 08:49:37 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Sunday, 06-Nov-94 08:49:37 GMT"];

/// Values in the forms of single services.
const FORMS: [&str; 6] = [
    "6m0s",
    "2026-01-01T01:00:25Z",
    "1767229500000",
    "39/40",
    "api-usage=999/1000",
    "b=per_hour;q=9;r=0;t=3600",
];

fn number() -> impl Strategy<Value = String> {
    let extreme =
        select(vec!["-1", "0", "1e9", "NaN", "946080000", "1700000000", "18446744073709551615", "0.001"]);
    prop_oneof![extreme.prop_map(str::to_owned), (0..200_u64).prop_map(|number| number.to_string())]
}

fn natural() -> impl Strategy<Value = String> {
    prop_oneof![
        select(vec!["0", "946080000", "999999999999999"]).prop_map(str::to_owned),
        (0..200_u64).prop_map(|it| it.to_string())
    ]
}

/// A policy with its size and its remaining permits, which may contradict each other.
fn policy() -> impl Strategy<Value = String> {
    let number = || prop_oneof![9 => natural().boxed(), 1 => number().boxed()];
    (select(vec!["p", "q", "10"]), number(), number(), number(), number())
        .prop_map(|(name, q, w, r, t)| format!("\"{name}\";q={q};w={w};r={r};t={t}"))
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let list = |item: BoxedStrategy<String>| vec(item, 1..3).prop_map(|items| items.join(", ").into_bytes());
    let thousand = policy().prop_map(|policy| {
        let many = (0..1_000).map(|index| policy.replacen('"', &format!("\"{index}"), 1));
        many.collect::<Vec<_>>().join(",").into_bytes()
    });
    prop_oneof![
        6 => list(number().boxed()),
        6 => list(policy().boxed()),
        1 => select([&DATES[..], &FORMS].concat()).prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..40),
        1 => thousand,
    ]
}

fn headers() -> impl Strategy<Value = HeaderMap> {
    let name = || prop_oneof![select(NAMES.to_vec()), select(rate_limit::names().collect::<Vec<_>>())];
    vec((name(), value()), 0..6).prop_map(|fields| {
        let field = |(name, value): (&'static str, Vec<u8>)| {
            Some((HeaderName::from_static(name), HeaderValue::from_bytes(&value).ok()?))
        };
        fields.into_iter().filter_map(field).collect()
    })
}

/// A response, and the milliseconds since the previous one.
fn response() -> impl Strategy<Value = (u64, StatusCode, HeaderMap)> {
    let status = select(vec![200, 200, 204, 302, 403, 404, 429, 429, 500, 503, 529]);
    (0..400_u64, status, headers())
        .prop_map(|(after, status, headers)| (after, StatusCode::from_u16(status).unwrap(), headers))
}

fn respond(core: &mut Core, grant: Grant, (status, headers): (StatusCode, &HeaderMap), now: u64) {
    let info = ResponseInfo::new(status, headers);
    assert!(info.remaining().len() <= rate_limit::MAX_POLICIES);
    core.finished(grant, End::Response(&Feedback::from(&info), grant.at), &Taken::default(), now);
}

/// Takes all permits that are available now.
fn take_all(core: &mut Core, now: u64) -> Vec<Grant> {
    std::iter::from_fn(|| core.try_submit(one(), now).ok()).take(1_000).collect()
}

/// Returns the number of permits that one window grants from now on, if callers always wait.
fn in_one_window(core: &mut Core, now: u64) -> usize {
    (0..50).map(|step| take_all(core, now + step * WINDOW_LENGTH / 50).len()).sum()
}

fn limiter(rule: Rule, quotas: &[Quota], obeys_remaining: bool) -> Core {
    let pauses = PauseSettings::DEFAULT.with_longest(Duration::from_nanos(LONGEST)).unwrap();
    Core::new(quotas, CoreSettings { obeys_remaining, pauses, ..CoreSettings::new(rule) })
}

proptest! {
    /// The k-th grant is no earlier than that of a limiter whose server sends no headers. After the longest pause and a
    /// window, one ordinary response is enough for the limiter's own rate.
    #[test]
    fn hostile_headers_never_speed_up_a_limiter_and_stop_it_no_longer_than_the_longest_pause(
        responses in vec(response(), 1..12),
        rule in select(vec![BUCKET, PACED, WINDOW, Rule::Learned]),
        has_quota in any::<bool>(),
        obeys_remaining in any::<bool>(),
    ) {
        let quotas = Vec::from_iter(has_quota.then(|| quota(20, 1_000, 4)));
        let is_learned = rule == Rule::Learned;
        let mut limiter = limiter(rule, &quotas, obeys_remaining);
        // An adaptive limiter has the quota as its ceiling, and a server may raise its rate up to there.
        let mut other = core(if is_learned { PACED } else { rule }, &quotas);
        let (mut now, mut in_flight, mut counts) = (0, Vec::new(), (0, 0));
        for (after, status, headers) in &responses {
            for _ in 0..4 {
                now += after * MS / 4;
                let granted = take_all(&mut limiter, now);
                counts = (counts.0 + granted.len(), counts.1 + take_all(&mut other, now).len());
                prop_assert!(counts.0 <= counts.1, "{} grants instead of {} at {now}", counts.0, counts.1);
                in_flight.extend(granted);
            }
            if let Some(grant) = in_flight.pop() {
                respond(&mut limiter, grant, (*status, headers), now);
            }
        }
        now += LONGEST;
        let probe = limiter.try_submit(one(), now);
        prop_assert!(probe.is_ok(), "{probe:?}");
        // The learned rate is lower after throttled responses.
        if !is_learned {
            respond(&mut limiter, probe.unwrap(), (StatusCode::OK, &HeaderMap::new()), now);
            now += 3 * WINDOW_LENGTH;
            prop_assert_eq!(limiter.snapshot(now).paused_until, None);
            let own = in_one_window(&mut core(rule, &quotas), 0);
            prop_assert_eq!(in_one_window(&mut limiter, now), own);
        }
    }

    /// An accepted response sets the rate of an adaptive limiter for at most two windows, and `resume` ends that at
    /// once.
    #[test]
    fn hostile_headers_of_an_accepted_response_set_no_rate_for_good(
        mut headers in headers(),
        (limit, window, left, reset) in (2..9_u32, 1..=120_u32, 0..2_u32, natural()),
        resumes in any::<bool>(),
    ) {
        headers.insert("ratelimit-policy", format!("\"p\";q={limit};w={window}").parse().unwrap());
        headers.insert("ratelimit", format!("\"p\";r={left};t={reset}").parse().unwrap());
        // The response is neither cached nor an error of gRPC, and has no more policies than the limiter reads.
        for name in ["age", "grpc-status", "beta-ratelimit", "beta-ratelimit-policy"] {
            headers.remove(name);
        }
        let mut limiter = limiter(Rule::Learned, &[], false);
        let grant = limiter.try_submit(one(), 0).unwrap();
        respond(&mut limiter, grant, (StatusCode::OK, &headers), 0);
        prop_assert!(limiter.snapshot(0).learned.is_some(), "the headers set a rate");
        let now = if resumes { 3 * SECOND } else { LONGEST };
        if resumes {
            limiter.resume(now);
        }
        let fresh = in_one_window(&mut core(Rule::Learned, &[]), 0);
        prop_assert_eq!(in_one_window(&mut limiter, now), fresh);
    }
}
