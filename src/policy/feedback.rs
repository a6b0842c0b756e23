//! Reads from a response how long to wait before the next request.

use std::{
    cell::LazyCell,
    time::{Duration, SystemTime},
};

use http::{
    HeaderMap, HeaderName, StatusCode,
    header::{DATE, RETRY_AFTER},
};

use super::{grpc, http_date, rate_limit};

static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
static X_MS_RETRY_AFTER_MS: HeaderName = HeaderName::from_static("x-ms-retry-after-ms");

/// Prefixes of every header name that this module, [`rate_limit`] or [`grpc`] reads.
const BEGINNINGS: [&str; 5] = ["retry-after", "x-ms-retry-after", "ratelimit", "x-ratelimit", "grpc-"];

/// The first bytes of the prefixes. Most names need no other check.
static FIRST: [bool; 256] = {
    let mut first = [false; 256];
    let mut at = 0;
    while at < BEGINNINGS.len() {
        first[BEGINNINGS[at].as_bytes()[0] as usize] = true;
        at += 1;
    }
    first
};

/// Returns whether this module, [`rate_limit`] or [`grpc`] would read any of the headers. Few responses have one, and
/// one scan over the names costs less than a dozen lookups.
pub(crate) fn speaks(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| begins(name.as_str()))
}

fn begins(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|first| FIRST[usize::from(first)]);
    first && BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// The longest requested delay, 30 years. A longer one is read as this. No call waits that long, so the caller gives
/// up.
///
/// Any clock can add 30 years. 100 years overflow an `Instant` on FreeBSD, as the source of tokio's `Instant` notes.
///
/// ```
/// use std::time::{Duration, Instant};
/// use tower_outbound::policy::MAX_ASK;
///
/// assert!(Instant::now().checked_add(MAX_ASK).is_some());
/// ```
pub const MAX_ASK: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Returns the delay that the server requested, counted from the receipt of the response.
///
/// Returns `None` if no header has a valid value. `Duration::ZERO`, as for a date in the past, requests no delay: the
/// ordinary backoff applies.
///
/// Reads the first of these headers that has a valid value:
///
/// | header | value |
/// |---|---|
/// | `retry-after-ms`, then `x-ms-retry-after-ms` | milliseconds, more exact than `Retry-After` |
/// | `Retry-After` (RFC 9110 §10.2.3) | seconds, or an HTTP-date in one of its three forms |
///
/// The delay is never shorter than any valid value of that header:
///
/// - A fraction is rounded up: `1.5` is 2 s, and `1500.7` is 1501 ms.
/// - A list of numbers, as proxies join several fields, is read as its largest number: `3, 9` is 9 s.
/// - Any other value with commas is read as a date.
/// - The longest delay counts if the header has several fields.
/// - A delay longer than [`MAX_ASK`], or too large for 64 bits, is read as `MAX_ASK`.
///
/// A number with a sign, a unit or an exponent is not valid.
///
/// A date is read relative to the response's own `Date`, because the two clocks differ. Without a `Date` it is read
/// relative to `wall`, which is called at most once.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::{HeaderMap, HeaderValue, header::{DATE, RETRY_AFTER}};
/// use tower_outbound::policy::retry_after;
///
/// let mut headers = HeaderMap::new();
/// headers.insert(RETRY_AFTER, HeaderValue::from_static("120"));
/// assert_eq!(retry_after(&headers, SystemTime::now), Some(Duration::from_secs(120)));
///
/// headers.insert(RETRY_AFTER, HeaderValue::from_static("3, 8.2"));
/// assert_eq!(retry_after(&headers, SystemTime::now), Some(Duration::from_secs(9)));
///
/// headers.insert(DATE, HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT"));
/// headers.insert(RETRY_AFTER, HeaderValue::from_static("Sun, 06 Nov 1994 08:50:00 GMT"));
/// assert_eq!(retry_after(&headers, SystemTime::now), Some(Duration::from_secs(23)));
/// ```
pub fn retry_after(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime) -> Option<Duration> {
    let served = LazyCell::new(|| served(headers, wall));
    let millis = |text: &str| largest(text).map(Duration::from_millis);
    let seconds_or_date = |text: &str| match largest(text) {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        // A two-digit year is read relative to the same clock as the date.
        None => http_date::parse_with(text, || *served)
            .map(|moment| moment.duration_since(*served).unwrap_or(Duration::ZERO)),
    };
    longest(headers, &RETRY_AFTER_MS, millis)
        .or_else(|| longest(headers, &X_MS_RETRY_AFTER_MS, millis))
        .or_else(|| longest(headers, &RETRY_AFTER, seconds_or_date))
        .map(|asked| asked.min(MAX_ASK))
}

/// Returns when the response was sent: by its `Date`, otherwise by `wall`.
pub(super) fn served(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime) -> SystemTime {
    let wall = LazyCell::new(wall);
    let date = values(headers, &DATE).next();
    date.and_then(|text| http_date::parse_with(text, || *wall)).unwrap_or_else(|| *wall)
}

fn longest(
    headers: &HeaderMap,
    name: &HeaderName,
    parse: impl Fn(&str) -> Option<Duration>,
) -> Option<Duration> {
    values(headers, name).filter_map(parse).max()
}

/// Returns the values that are text, without surrounding white space (RFC 9110 §5.5).
pub(super) fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| Some(value.to_str().ok()?.trim_matches([' ', '\t'])))
}

/// Reads `1*DIGIT`. Saturates.
pub(super) fn whole_number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // All digits, so the only error is overflow.
    Some(text.parse().unwrap_or(u64::MAX))
}

/// Reads `1*DIGIT [ "." 1*DIGIT ]`. Returns the whole part, which saturates, and whether the fraction is above zero.
pub(super) fn decimal(text: &str) -> Option<(u64, bool)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    Some((whole_number(whole)?, whole_number(fraction)? > 0))
}

/// Returns the largest number of a comma-separated list, rounded up. Returns `None` if any member is not a number,
/// because dates contain commas, too.
fn largest(text: &str) -> Option<u64> {
    text.split(',').try_fold(0, |largest: u64, member| {
        let (whole, fraction) = decimal(member.trim_matches([' ', '\t']))?;
        Some(largest.max(whole.saturating_add(fraction.into())))
    })
}

/// Returns whether the server rejects every request for now, not only this one.
///
/// | response | throttled |
/// |---|---|
/// | 429, 503, 529 (overloaded) | yes |
/// | gRPC's `RESOURCE_EXHAUSTED` or `UNAVAILABLE` in the response headers, with any HTTP status | yes |
/// | any other status | no |
///
/// After a throttled response `Retry-After` pauses every caller of a limiter. With any other status it delays only the
/// call that received the response. This includes 520–524 and 530: they report a failed exchange between a CDN and its
/// origin, and one slow resource must not stop all callers.
///
/// Costs one lookup for other responses, because only a gRPC response has a `grpc-status`.
pub fn is_throttled(status: StatusCode, headers: &HeaderMap) -> bool {
    matches!(status.as_u16(), 429 | 503 | 529) || grpc::is_throttled(headers)
}

/// Returns the longer of [`retry_after`] and the [pushback](grpc::pushback) of a failed gRPC call.
pub fn pause(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime) -> Option<Duration> {
    retry_after(headers, wall).max(grpc::asked(headers))
}

/// Returns the delay that the server requested, with [remaining] permits as a fallback.
///
/// The delay is that of [`pause`]. Without one, a [throttled](is_throttled) response without remaining permits
/// requests the time until more are available, the longest of its quotas. Returns `None` without a request, or if the
/// delay is over.
///
/// [remaining]: super::remaining()
pub fn asked(status: StatusCode, headers: &HeaderMap, wall: impl Fn() -> SystemTime) -> Option<Duration> {
    if !speaks(headers) {
        return None;
    }
    let asked = pause(headers, &wall).or_else(|| {
        let remaining = is_throttled(status, headers).then(|| rate_limit::remaining(headers, &wall))?;
        let empty = remaining.as_slice().iter().filter(|remaining| remaining.left() == 0);
        empty.map(|remaining| remaining.more_in()).max()
    });
    asked.filter(|asked| !asked.is_zero())
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::UNIX_EPOCH};

    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;
    use crate::policy::head_of;

    const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    /// Returns the requested delay, and how often the wall clock was read. The clock is fixed at `NOW`.
    fn ask(lines: &[(&'static str, &[u8])]) -> (Option<Duration>, u32) {
        let headers = head_of(lines.iter().copied());
        let reads = Cell::new(0);
        let wall = || {
            reads.set(reads.get() + 1);
            http_date::parse_http_date(NOW, UNIX_EPOCH).unwrap()
        };
        (retry_after(&headers, wall), reads.get())
    }

    const fn millis(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    #[test]
    fn reads_every_form_of_one_header() {
        let in_23_seconds = "Sun, 06 Nov 1994 08:50:00 GMT";
        let cases: [(&str, Option<Duration>); 48] = [
            ("0", millis(0)),
            ("000", millis(0)),
            ("120", millis(120_000)),
            ("0120", millis(120_000)),
            (" \t7 ", millis(7_000)),
            ("946080000", Some(MAX_ASK)),
            ("946079999", millis(946_079_999_000)),
            ("18446744073709551615", Some(MAX_ASK)),
            ("18446744073709551616", Some(MAX_ASK)),
            ("99999999999999999999999999999999999999999999", Some(MAX_ASK)),
            (in_23_seconds, millis(23_000)),
            ("Sunday, 06-Nov-94 08:50:00 GMT", millis(23_000)),
            ("Sun Nov  6 08:50:00 1994", millis(23_000)),
            (NOW, millis(0)),
            ("Sun, 06 Nov 1994 08:49:36 GMT", millis(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(MAX_ASK)),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.5", millis(2_000)),
            ("0.001", millis(1_000)),
            ("2.000", millis(2_000)),
            ("1.99999999999999999999999999", millis(2_000)),
            ("18446744073709551615.5", Some(MAX_ASK)),
            ("946079999.5", Some(MAX_ASK)),
            ("3, 9", millis(9_000)),
            ("9,3", millis(9_000)),
            ("10,\t20 , 5", millis(20_000)),
            ("1.5, 1", millis(2_000)),
            ("3, 99999999999999999999", Some(MAX_ASK)),
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
            assert_eq!(ask(&[("retry-after", text.as_bytes())]).0, expected, "{text}");
        }
        assert_eq!(ask(&[("retry-after", b"\xb2")]).0, None);
        assert_eq!(ask(&[("retry-after", "١٢".as_bytes())]).0, None);
        assert_eq!(ask(&[]), (None, 0));
    }

    #[test]
    fn milliseconds_come_first_and_fall_through_when_malformed() {
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
            (&[("retry-after-ms", b"99999999999999999999")], Some(MAX_ASK)),
            (&[("retry-after-ms", b"0"), ("retry-after", b"5")], millis(0)),
        ];
        for (lines, expected) in cases {
            assert_eq!(ask(lines), (expected, 0), "{lines:?}");
        }
    }

    #[test]
    fn of_several_lines_the_longest_valid_counts() {
        let date = b"Sun, 06 Nov 1994 08:49:47 GMT";
        assert_eq!(
            ask(&[("retry-after", b"3"), ("retry-after", date), ("retry-after", b"x")]).0,
            millis(10_000)
        );
        assert_eq!(ask(&[("retry-after", b"30"), ("retry-after", date)]).0, millis(30_000));
        assert_eq!(ask(&[("retry-after", b"3, 9.5"), ("retry-after", date)]).0, millis(10_000));
        assert_eq!(ask(&[("retry-after", b"3, 19"), ("retry-after", date)]).0, millis(19_000));
        assert_eq!(ask(&[("retry-after", b"3, x"), ("retry-after", b"2.1")]).0, millis(3_000));
    }

    #[test]
    fn only_429_503_and_529_are_throttled_without_grpc() {
        for status in 100..1_000 {
            let throttled = is_throttled(StatusCode::from_u16(status).unwrap(), &HeaderMap::new());
            assert_eq!(throttled, [429, 503, 529].contains(&status), "{status}");
        }
    }

    #[test]
    fn a_date_is_read_against_the_servers_own() {
        let until = b"Sun, 06 Nov 1994 10:00:10 GMT";
        let served = b"Sun, 06 Nov 1994 10:00:00 GMT";
        assert_eq!(ask(&[("retry-after", until), ("date", served)]), (millis(10_000), 0));
        assert_eq!(ask(&[("retry-after", until), ("date", b"yesterday")]), (millis(4_233_000), 1));
        // The century of both dates comes from one reading of the clock.
        let (until, served) = (b"Sunday, 06-Nov-94 10:00:10 GMT", b"Sunday, 06-Nov-94 10:00:00 GMT");
        assert_eq!(ask(&[("retry-after", until), ("date", served)]), (millis(10_000), 1));
        assert_eq!(ask(&[("retry-after", b"5"), ("date", served)]), (millis(5_000), 0));
    }

    fn speaks_by(name: &str) -> bool {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        let plain = HeaderName::from_static("content-type");
        speaks(&HeaderMap::from_iter([plain, name].map(|name| (name, HeaderValue::from_static("1")))))
    }

    #[test]
    fn every_beginning_is_found_and_its_neighbours_are_not() {
        for beginning in BEGINNINGS {
            assert!(speaks_by(beginning) && speaks_by(&format!("{beginning}s")), "{beginning}");
            // All that differ from it in one character, and what ends too early or begins too late.
            for at in 0..beginning.len() {
                for other in ('a'..='z').chain(['-', '_', '~', '0']) {
                    let (before, after) = (&beginning[..at], &beginning[at + 1..]);
                    let name = format!("{before}{other}{after}");
                    assert_eq!(speaks_by(&name), name == beginning, "{name}");
                }
                assert!(at == 0 || !speaks_by(&beginning[..at]), "{}", &beginning[..at]);
                assert!(!speaks_by(&format!("a-{}", &beginning[at..])), "{}", &beginning[at..]);
            }
        }
        assert!(!speaks(&HeaderMap::new()));
    }

    /// A number with white space around it and perhaps a fraction, and its whole part and billionths.
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
        fn no_bytes_make_it_panic_or_ask_for_more_than_the_most(
            value in prop::collection::vec(32u8..=255, 0..40), digits in "[0-9]{1,40}", date in ".{0,30}",
        ) {
            for value in [value.as_slice(), digits.as_bytes(), date.as_bytes()] {
                let Ok(value) = HeaderValue::from_bytes(value) else { continue };
                for name in [&RETRY_AFTER, &RETRY_AFTER_MS, &X_MS_RETRY_AFTER_MS] {
                    let headers = HeaderMap::from_iter([(name.clone(), value.clone()), (DATE, value.clone())]);
                    let asked = retry_after(&headers, || UNIX_EPOCH);
                    prop_assert!(asked.is_none_or(|asked| asked <= MAX_ASK));
                }
            }
        }

        /// Tries text that resembles numbers, lists and dates, in several fields of each name.
        #[test]
        fn any_mix_of_fields_is_read_without_panic(
            fields in prop::collection::vec((0..4_usize, "([0-9]{0,22}[.,+ -]?){0,6}|[0-9.,: SunNov\tGMT-]{0,34}"), 0..6),
        ) {
            let names = [&RETRY_AFTER, &RETRY_AFTER_MS, &X_MS_RETRY_AFTER_MS, &DATE];
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(names[name].clone(), HeaderValue::from_str(&value).unwrap());
            }
            prop_assert!(retry_after(&headers, || UNIX_EPOCH).is_none_or(|asked| asked <= MAX_ASK));
        }

        #[test]
        fn rounds_the_longest_member_of_a_list_up_to_a_whole_unit(
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
            let asked = retry_after(&headers, || UNIX_EPOCH).unwrap();
            let nanos = |duration: Duration| duration.as_nanos();
            let exact = exact.into_iter().map(|(whole, billionths)| {
                // A billionth of a millisecond is less than a nanosecond: round up.
                let part = u128::from(billionths) * nanos(unit);
                u128::from(whole) * nanos(unit) + part.div_ceil(1_000_000_000)
            });
            let longest = exact.max().unwrap();
            prop_assert!(nanos(asked) >= longest.min(nanos(MAX_ASK)));
            prop_assert!(nanos(asked) < longest + nanos(unit));
        }
    }
}
