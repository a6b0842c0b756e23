use std::{cell::Cell, time::UNIX_EPOCH};

use http::{HeaderValue, header::DATE};
use proptest::prelude::*;

use super::{delays::DELAYS, *};
use crate::policy::{MAX_REQUESTED_DELAY, dialect::STANDARD, head_of, moment::parse_http_date};

const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// Returns the requested delay, and how often the wall clock was read. The clock is fixed at `NOW`.
fn read(lines: &[(&'static str, &[u8])]) -> (Option<Duration>, u32) {
    let headers = head_of(lines.iter().copied());
    let reads = Cell::new(0);
    let wall = || {
        reads.set(reads.get() + 1);
        parse_http_date(NOW, || UNIX_EPOCH).unwrap()
    };
    (retry_after(&headers, &[], wall), reads.get())
}

const fn millis(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis))
}

#[test]
fn longest_requested_delay_does_not_overflow_an_instant() {
    #[allow(clippy::disallowed_methods, reason = "any time will do")]
    let now = std::time::Instant::now();
    assert!(now.checked_add(MAX_REQUESTED_DELAY).is_some());
}

#[test]
fn reads_the_retry_after_header_as_a_list_or_as_one_value() {
    let cases: [(&str, Option<Duration>); 25] = [
        ("0", millis(0)),
        (" \t7 ", millis(7_000)),
        ("946080000", Some(MAX_REQUESTED_DELAY)),
        ("99999999999999999999999999999999999999999999", Some(MAX_REQUESTED_DELAY)),
        ("Sun, 06 Nov 1994 08:50:00 GMT", millis(23_000)),
        ("Sunday, 06-Nov-94 08:50:00 GMT", millis(23_000)),
        ("1994-11-06T08:50:00Z", millis(23_000)),
        ("Sun, 06 Nov 1994 08:49:36 GMT", millis(0)),
        ("-1", None),
        ("1.5", millis(1_500)),
        ("1m30s", millis(90_000)),
        ("3, 9", millis(9_000)),
        ("3, 8.2", millis(8_200)),
        ("10,\t20 , 5", millis(20_000)),
        ("1.5, 1", millis(1_500)),
        ("3, 99999999999999999999", Some(MAX_REQUESTED_DELAY)),
        ("3, -9", millis(3_000)),
        ("", None),
        ("1.", None),
        ("3,", None),
        (", 3", None),
        ("3, soon", None),
        ("3, Sun, 06 Nov 1994 08:50:00 GMT", None),
        ("Sun, 06 Nov 1994 08:50:00 GMT, 3", None),
        ("soon", None),
    ];
    for (text, expected) in cases {
        assert_eq!(read(&[("retry-after", text.as_bytes())]).0, expected, "{text}");
    }
    assert_eq!(read(&[("retry-after", b"\xb2")]).0, None);
    assert_eq!(read(&[]), (None, 0));
    let unix = [("retry-after", b"1767229260".as_slice()), ("date", b"Thu, 01 Jan 2026 01:00:00 GMT")];
    assert_eq!(read(&unix).0, millis(60_000), "a Unix time");
}

#[test]
fn prefers_a_valid_retry_after_ms_header_to_retry_after() {
    type Case<'a> = (&'a [(&'static str, &'a [u8])], Option<Duration>);
    let cases: [Case<'_>; 12] = [
        (&[("retry-after", b"2"), ("x-ms-retry-after-ms", b"-1")], millis(2_000)),
        (&[("retry-after", b"1"), ("retry-after-ms", b"1500")], millis(1_500)),
        (&[("x-ms-retry-after-ms", b"20"), ("retry-after-ms", b"10")], millis(10)),
        (
            &[("x-ms-retry-after-ms", b"20"), ("retry-after-ms", b"10.25")],
            Some(Duration::from_micros(10_250)),
        ),
        (&[("x-ms-retry-after-ms", b"20"), ("retry-after-ms", b"soon")], millis(20)),
        (&[("beta-retry-after", b"50")], None),
        (&[("retry-after", b"1"), ("x-ms-retry-after-ms", b"1500.2, 1600")], millis(1_600)),
        (&[("retry-after-ms", b"300, 99"), ("retry-after-ms", b"250")], millis(300)),
        (&[("x-ratelimit-retry-after", b"2")], millis(2_000)),
        (&[("requestlimit-default-retryafter", b"30000")], millis(30_000)),
        (&[("retry-after-ms", b"99999999999999999999")], Some(MAX_REQUESTED_DELAY)),
        (&[("retry-after-ms", b"0"), ("retry-after", b"5")], millis(0)),
    ];
    for (lines, expected) in cases {
        assert_eq!(read(lines), (expected, 0), "{lines:?}");
    }
}

#[test]
fn returns_the_longest_delay_of_several_retry_after_headers() {
    let date = b"Sun, 06 Nov 1994 08:49:47 GMT";
    assert_eq!(
        read(&[("retry-after", b"3"), ("retry-after", date), ("retry-after", b"x")]).0,
        millis(10_000)
    );
    assert_eq!(read(&[("retry-after", b"30"), ("retry-after", date)]).0, millis(30_000));
    assert_eq!(read(&[("retry-after", b"3, 9.5"), ("retry-after", date)]).0, millis(10_000));
    assert_eq!(read(&[("retry-after", b"3, 19"), ("retry-after", date)]).0, millis(19_000));
    assert_eq!(read(&[("retry-after", b"3, x"), ("retry-after", b"2.1")]).0, millis(2_100));
}

#[test]
fn treats_a_403_and_a_418_as_throttled_only_with_a_delay_or_an_empty_quota() {
    let empty = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")];
    let left = [("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "9")];
    // A gateway in front of GitHub.
    let of_gateway = [("ratelimit-remaining", "99"), ("ratelimit-reset", "20"), empty[0], empty[1]];
    let heads: [(&[(&'static str, &str)], bool); 12] = [
        (&[], false),
        (&left, false),
        (&empty, true),
        (&of_gateway, true),
        (&[("retry-after", "60")], true),
        // Jira Data Center sends a delay of zero while permits remain.
        (&[left[0], left[1], ("retry-after", "0")], false),
        (&[("retry-after", "Sun, 06 Nov 1960 08:49:37 GMT"), ("retry-after-ms", "-1, -1")], false),
        (&[("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT")], false),
        // Jira reports how it would limit the request if the limit were in force.
        (&[left[0], left[1], ("beta-retry-after", "50")], false),
        (&[("beta-ratelimit", "\"tenant-app-quota\";r=0;t=2788")], false),
        // Tyk, with a limit of zero for an unlimited key.
        (&[("x-ratelimit-limit", "0"), empty[0], ("x-ratelimit-reset", "0")], false),
        (&[("x-ratelimit-limit", "-1"), empty[0], empty[1]], false),
    ];
    for (head, is_throttle) in heads {
        let headers = head_of(head.iter().map(|(name, value)| (*name, value.as_bytes())));
        for status in 100..1_000 {
            let expected = match status {
                420 | 429 | 503 | 509 | 529 => true,
                403 | 418 => is_throttle,
                _ => false,
            };
            let status = StatusCode::from_u16(status).unwrap();
            let reading = Reading::new(&STANDARD, status, &headers, None, || UNIX_EPOCH);
            let is_accepted = reading.acceptance() == Acceptance::Accepted;
            assert_eq!(is_accepted, !expected, "{status} {head:?}");
        }
    }
}

#[test]
fn quota_in_beta_delays_only_a_throttled_response() {
    let headers = head_of([("beta-ratelimit", b"\"tenant-app-quota\";r=0;t=2788".as_slice())]);
    for (status, expected) in [(200, 1), (403, 0), (429, 1), (500, 0), (503, 0)] {
        let status = StatusCode::from_u16(status).unwrap();
        let reading = Reading::new(&STANDARD, status, &headers, None, || UNIX_EPOCH);
        assert_eq!(reading.remaining().len(), expected, "{status}");
        let delay = (status == 429).then_some(Duration::from_secs(2_788));
        assert_eq!(reading.requested_delay(), delay, "{status}");
        assert_eq!(reading.is_rejected(), status == 429, "{status}");
    }
}

#[test]
fn subtracts_response_date_from_retry_after_date() {
    let until = b"Sun, 06 Nov 1994 10:00:10 GMT";
    let served = b"Sun, 06 Nov 1994 10:00:00 GMT";
    assert_eq!(read(&[("retry-after", until), ("date", served)]), (millis(10_000), 0));
    assert_eq!(read(&[("retry-after", until), ("date", b"yesterday")]), (millis(4_233_000), 1));
    // The wall clock is read once to determine the century of both dates.
    let (until, served) = (b"Sunday, 06-Nov-94 10:00:10 GMT", b"Sunday, 06-Nov-94 10:00:00 GMT");
    assert_eq!(read(&[("retry-after", until), ("date", served)]), (millis(10_000), 1));
    assert_eq!(read(&[("retry-after", b"5"), ("date", served)]), (millis(5_000), 0));
}

fn has_limits_in(name: &str) -> bool {
    let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
    let plain = HeaderName::from_static("content-type");
    has_limits(&HeaderMap::from_iter([plain, name].map(|name| (name, HeaderValue::from_static("1")))))
}

#[test]
fn recognizes_every_header_and_no_similar_name() {
    let own = DELAYS.iter().map(|(name, _)| name).chain(SCOPES.iter().map(|(name, ..)| name));
    let names: Vec<_> = rate_limit::names().chain(own.map(HeaderName::as_str)).collect();
    let is_known = |name: &str| names.contains(&name);
    for name in &names {
        assert!(has_limits_in(name), "{name}");
        // Tests names with one changed character, names without their end, and names that start with `a-`.
        for at in 0..name.len() {
            for other in ('a'..='z').chain(['-', '_', '~', '0']) {
                let similar = format!("{}{other}{}", &name[..at], &name[at + 1..]);
                assert_eq!(has_limits_in(&similar), is_known(&similar), "{similar}");
            }
            assert!(at == 0 || has_limits_in(&name[..at]) == is_known(&name[..at]), "{}", &name[..at]);
            assert!(!has_limits_in(&format!("a-{}", &name[at..])), "{}", &name[at..]);
        }
    }
    for (name, expected) in [("grpc-status", true), ("grpc-x", true), ("grpc", false), ("grpc_status", false)]
    {
        assert_eq!(has_limits_in(name), expected, "{name}");
    }
    assert!(!has_limits(&HeaderMap::new()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_retry_after_bytes_give_a_delay_of_at_most_30_years(
        value in prop::collection::vec(32u8..=255, 0..40), digits in "[0-9]{1,40}", date in ".{0,30}",
    ) {
        for value in [value.as_slice(), digits.as_bytes(), date.as_bytes()] {
            let Ok(value) = HeaderValue::from_bytes(value) else { continue };
            for (name, _) in &DELAYS {
                let headers = HeaderMap::from_iter([(name.clone(), value.clone()), (DATE, value.clone())]);
                let delay = retry_after(&headers, &[], || UNIX_EPOCH);
                prop_assert!(delay.is_none_or(|delay| delay <= MAX_REQUESTED_DELAY));
            }
        }
    }

}
