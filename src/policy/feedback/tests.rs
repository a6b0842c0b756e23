use std::{cell::Cell, time::UNIX_EPOCH};

use http::{HeaderValue, header::DATE};
use proptest::prelude::*;

use super::*;
use crate::policy::head_of;

const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// Returns the requested delay, and how often the wall clock was read. The clock is fixed at `NOW`.
fn read(lines: &[(&'static str, &[u8])]) -> (Option<Duration>, u32) {
    let headers = head_of(lines.iter().copied());
    let reads = Cell::new(0);
    let wall = || {
        reads.set(reads.get() + 1);
        http_date::parse_http_date(NOW, || UNIX_EPOCH).unwrap()
    };
    (retry_after(&headers, wall), reads.get())
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
fn reads_every_form_of_the_retry_after_header() {
    let in_23_seconds = "Sun, 06 Nov 1994 08:50:00 GMT";
    let cases: [(&str, Option<Duration>); 49] = [
        ("0", millis(0)),
        ("000", millis(0)),
        ("120", millis(120_000)),
        ("0120", millis(120_000)),
        (" \t7 ", millis(7_000)),
        ("946080000", Some(MAX_REQUESTED_DELAY)),
        ("946079999", millis(946_079_999_000)),
        ("18446744073709551615", Some(MAX_REQUESTED_DELAY)),
        ("18446744073709551616", Some(MAX_REQUESTED_DELAY)),
        ("99999999999999999999999999999999999999999999", Some(MAX_REQUESTED_DELAY)),
        (in_23_seconds, millis(23_000)),
        ("Sunday, 06-Nov-94 08:50:00 GMT", millis(23_000)),
        ("Sun Nov  6 08:50:00 1994", millis(23_000)),
        (NOW, millis(0)),
        ("Sun, 06 Nov 1994 08:49:36 GMT", millis(0)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", Some(MAX_REQUESTED_DELAY)),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("1.5", millis(2_000)),
        ("0.001", millis(1_000)),
        ("2.000", millis(2_000)),
        ("1.99999999999999999999999999", millis(2_000)),
        ("18446744073709551615.5", Some(MAX_REQUESTED_DELAY)),
        ("946079999.5", Some(MAX_REQUESTED_DELAY)),
        ("3, 9", millis(9_000)),
        ("3, 8.2", millis(9_000)),
        ("9,3", millis(9_000)),
        ("10,\t20 , 5", millis(20_000)),
        ("1.5, 1", millis(2_000)),
        ("3, 99999999999999999999", Some(MAX_REQUESTED_DELAY)),
        ("0, 0", millis(0)),
        ("1.", None),
        (".5", None),
        ("1.5.2", None),
        ("-1.5", None),
        ("1.-5", None),
        ("1e3", None),
        ("3,", None),
        (", 3", None),
        ("3, -9", None),
        ("3, soon", None),
        ("3, Sun, 06 Nov 1994 08:50:00 GMT", None),
        ("Sun, 06 Nov 1994 08:50:00 GMT, 3", None),
        ("1s", None),
        ("1 2", None),
        ("0x10", None),
        ("soon", None),
        ("1994-11-06T08:50:00Z", None),
    ];
    for (text, expected) in cases {
        assert_eq!(read(&[("retry-after", text.as_bytes())]).0, expected, "{text}");
    }
    assert_eq!(read(&[("retry-after", b"\xb2")]).0, None);
    assert_eq!(read(&[("retry-after", "١٢".as_bytes())]).0, None);
    assert_eq!(read(&[]), (None, 0));
}

#[test]
fn prefers_a_valid_retry_after_ms_header_to_retry_after() {
    type Case<'a> = (&'a [(&'static str, &'a [u8])], Option<Duration>);
    let cases: [Case<'_>; 11] = [
        (&[("retry-after", b"1"), ("retry-after-ms", b"1500")], millis(1_500)),
        (&[("x-ms-retry-after-ms", b"20"), ("retry-after-ms", b"10")], millis(10)),
        (&[("x-ms-retry-after-ms", b"20"), ("retry-after-ms", b"10.5")], millis(11)),
        (&[("x-ms-retry-after-ms", b"20"), ("retry-after-ms", b"10s")], millis(20)),
        (&[("retry-after", b"1"), ("retry-after-ms", b"1500.7")], millis(1_501)),
        (&[("retry-after", b"1"), ("x-ms-retry-after-ms", b"1500.2, 1600")], millis(1_600)),
        (&[("retry-after-ms", b"300, 99"), ("retry-after-ms", b"250")], millis(300)),
        (&[("retry-after", b"2"), ("x-ms-retry-after-ms", b"-1")], millis(2_000)),
        (&[("retry-after-ms", NOW.as_bytes())], None),
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
    assert_eq!(read(&[("retry-after", b"3, x"), ("retry-after", b"2.1")]).0, millis(3_000));
}

#[test]
fn treats_only_429_503_and_529_as_throttled_without_a_grpc_status() {
    for status in 100..1_000 {
        let throttled = is_throttled(StatusCode::from_u16(status).unwrap(), &HeaderMap::new());
        assert_eq!(throttled, [429, 503, 529].contains(&status), "{status}");
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
fn recognizes_every_header_prefix_and_no_similar_name() {
    for prefix in PREFIXES {
        assert!(has_limits_in(prefix) && has_limits_in(&format!("{prefix}s")), "{prefix}");
        // Tests names with one changed character, names without the end of the prefix, and names that start with `a-`.
        for at in 0..prefix.len() {
            for other in ('a'..='z').chain(['-', '_', '~', '0']) {
                let (before, after) = (&prefix[..at], &prefix[at + 1..]);
                let name = format!("{before}{other}{after}");
                assert_eq!(has_limits_in(&name), name == prefix, "{name}");
            }
            assert!(at == 0 || !has_limits_in(&prefix[..at]), "{}", &prefix[..at]);
            assert!(!has_limits_in(&format!("a-{}", &prefix[at..])), "{}", &prefix[at..]);
        }
    }
    assert!(!has_limits(&HeaderMap::new()));
}

/// Generates a number with white space around it, and possibly with a fraction. Returns the text, the whole part of the
/// number, and the fraction in billionths.
fn member() -> impl Strategy<Value = (String, (u64, u32))> {
    let whole = prop_oneof![0..200_u64, any::<u64>()];
    let part = prop::option::of((0..1_000_000_000_u32, 0..20_usize));
    (whole, part, "[ \t]{0,2}", "[ \t]{0,2}").prop_map(|(whole, part, before, after)| {
        let (text, billionths) = match part {
            Some((part, zeros)) => (format!("{whole}.{part:09}{}", "0".repeat(zeros)), part),
            None => (whole.to_string(), 0),
        };
        (format!("{before}{text}{after}"), (whole, billionths))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_retry_after_bytes_give_a_delay_of_at_most_30_years(
        value in prop::collection::vec(32u8..=255, 0..40), digits in "[0-9]{1,40}", date in ".{0,30}",
    ) {
        for value in [value.as_slice(), digits.as_bytes(), date.as_bytes()] {
            let Ok(value) = HeaderValue::from_bytes(value) else { continue };
            for name in [&RETRY_AFTER, &RETRY_AFTER_MS, &X_MS_RETRY_AFTER_MS] {
                let headers = HeaderMap::from_iter([(name.clone(), value.clone()), (DATE, value.clone())]);
                let delay = retry_after(&headers, || UNIX_EPOCH);
                prop_assert!(delay.is_none_or(|delay| delay <= MAX_REQUESTED_DELAY));
            }
        }
    }

    /// Generates several headers of each name, with texts that resemble numbers, lists and dates.
    #[test]
    fn any_mix_of_delay_headers_causes_no_panic(
        fields in prop::collection::vec((0..4_usize, "([0-9]{0,22}[.,+ -]?){0,6}|[0-9.,: SunNov\tGMT-]{0,34}"), 0..6),
    ) {
        let names = [&RETRY_AFTER, &RETRY_AFTER_MS, &X_MS_RETRY_AFTER_MS, &DATE];
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(names[name].clone(), HeaderValue::from_str(&value).unwrap());
        }
        prop_assert!(retry_after(&headers, || UNIX_EPOCH).is_none_or(|delay| delay <= MAX_REQUESTED_DELAY));
    }

    #[test]
    fn rounds_the_longest_delay_of_a_list_up_to_a_whole_unit(
        lines in prop::collection::vec(prop::collection::vec(member(), 1..5), 1..4), name in 0..3_usize,
    ) {
        let (name, unit) = [
            (&RETRY_AFTER, Duration::from_secs(1)),
            (&RETRY_AFTER_MS, Duration::from_millis(1)),
            (&X_MS_RETRY_AFTER_MS, Duration::from_millis(1)),
        ][name];
        let mut headers = HeaderMap::new();
        let mut exact = Vec::new();
        for line in lines {
            let (texts, members): (Vec<_>, Vec<_>) = line.into_iter().unzip();
            headers.append(name.clone(), HeaderValue::from_str(&texts.join(",")).unwrap());
            exact.extend(members);
        }
        let delay = retry_after(&headers, || UNIX_EPOCH).unwrap();
        let nanos = |duration: Duration| duration.as_nanos();
        let exact = exact.into_iter().map(|(whole, billionths)| {
            // A nanosecond is the smallest unit, so billionths of a millisecond are rounded up.
            let part = u128::from(billionths) * nanos(unit);
            u128::from(whole) * nanos(unit) + part.div_ceil(1_000_000_000)
        });
        let longest = exact.max().unwrap();
        prop_assert!(nanos(delay) >= longest.min(nanos(MAX_REQUESTED_DELAY)));
        prop_assert!(nanos(delay) < longest + nanos(unit));
    }
}
