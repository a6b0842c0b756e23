//! What an answer says about when to come back.

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

/// What the names of all fields begin with that say when to come back or what is left.
const BEGINNINGS: [&str; 5] = ["retry-after", "x-ms-retry-after", "ratelimit", "x-ratelimit", "grpc-"];

/// Which characters the beginnings begin with, by their byte: one look is all that most names need.
static FIRST: [bool; 256] = {
    let mut first = [false; 256];
    let mut at = 0;
    while at < BEGINNINGS.len() {
        first[BEGINNINGS[at].as_bytes()[0] as usize] = true;
        at += 1;
    }
    first
};

/// Whether any field is there that is read here, in [`rate_limit`] or in [`grpc`]. Few answers have one, and one look at
/// each name costs less than a dozen that are looked up.
pub(crate) fn speaks(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| begins(name.as_str()))
}

fn begins(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|first| FIRST[usize::from(first)]);
    first && BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// What a longer ask is read as: 30 years, more than any call waits, so the caller gives up on it.
///
/// It can be added to every clock; 100 years overflow an `Instant` on FreeBSD, as tokio's `Instant` notes.
///
/// ```
/// use std::time::{Duration, Instant};
/// use tower_outbound::policy::MAX_ASK;
///
/// assert!(Instant::now().checked_add(MAX_ASK).is_some());
/// ```
pub const MAX_ASK: Duration = Duration::from_secs(30 * 365 * 86_400);

/// How long the server asks to wait, counted from the receipt of its answer.
///
/// `Duration::ZERO`, or a date that has passed, doesn't mean "at once": the ordinary back-off applies. `None`
/// is no ask, or one that can't be read.
///
/// Reads the first of these that has a valid value:
///
/// 1. `retry-after-ms`, then `x-ms-retry-after-ms`: whole milliseconds, more exact than seconds;
/// 2. `Retry-After`, RFC 9110 §10.2.3: whole seconds, or an HTTP-date. A date is read against the answer's
///    own `Date`, since the server's clock isn't ours, and without one against `wall`, which is called at
///    most once.
///
/// When a header comes several times the longest valid wait counts, since no attempt may come early. What is
/// longer than [`MAX_ASK`] is read as `MAX_ASK`.
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
/// headers.insert(DATE, HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT"));
/// headers.insert(RETRY_AFTER, HeaderValue::from_static("Sun, 06 Nov 1994 08:50:00 GMT"));
/// assert_eq!(retry_after(&headers, SystemTime::now), Some(Duration::from_secs(23)));
/// ```
pub fn retry_after(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime) -> Option<Duration> {
    let served = LazyCell::new(|| served(headers, wall));
    let millis = |text: &str| whole_number(text).map(Duration::from_millis);
    let seconds_or_date = |text: &str| match whole_number(text) {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        // The base of a two-digit year is the clock that the date is read against.
        None => http_date::parse_with(text, || *served)
            .map(|moment| moment.duration_since(*served).unwrap_or(Duration::ZERO)),
    };
    longest(headers, &RETRY_AFTER_MS, millis)
        .or_else(|| longest(headers, &X_MS_RETRY_AFTER_MS, millis))
        .or_else(|| longest(headers, &RETRY_AFTER, seconds_or_date))
        .map(|asked| asked.min(MAX_ASK))
}

/// When the answer was sent, by the server's clock if it tells, else by ours.
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

/// The values that are text, without the white space around them, which is not part of a value (RFC 9110
/// §5.5).
pub(super) fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| Some(value.to_str().ok()?.trim_matches([' ', '\t'])))
}

/// `1*DIGIT` and nothing else, saturating.
pub(super) fn whole_number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // All digits, so the one error left is a number too large.
    Some(text.parse().unwrap_or(u64::MAX))
}

/// Whether the server takes no request for now, whoever's: 429, 503, and of a gRPC server `RESOURCE_EXHAUSTED` and
/// `UNAVAILABLE` in the head of its answer, a 200 but for what a gateway makes of it.
///
/// That head is known by its `grpc-status`, which stands in no other answer's: one look-up is all that a plain answer
/// pays, and the content type needs none.
pub fn is_throttled(status: StatusCode, headers: &HeaderMap) -> bool {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => true,
        _ => grpc::is_throttled(headers),
    }
}

/// [`retry_after`], or what the head of a failed gRPC call says ([`grpc::pushback`]), when that is longer.
pub fn pause(headers: &HeaderMap, wall: impl FnOnce() -> SystemTime) -> Option<Duration> {
    retry_after(headers, wall).max(grpc::asked(headers))
}

/// For how long the server wants no further request, read off the head of an answer: [`pause`], or where the server
/// [takes none](is_throttled) and asks for none the longest time until it has more of what it has none left of
/// ([`remaining`]). None when it asks for nothing, or for what is over.
///
/// [`remaining`]: super::remaining()
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

    /// Also how often the wall clock was read; it stands at `NOW`.
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
        let cases: [(&str, Option<Duration>); 26] = [
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
            ("1.5", None),
            ("1s", None),
            ("1 2", None),
            ("10, 20", None),
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
        let cases: [Case<'_>; 7] = [
            (&[("retry-after", b"1"), ("retry-after-ms", b"1500")], millis(1_500)),
            (&[("x-ms-retry-after-ms", b"20"), ("retry-after-ms", b"10")], millis(10)),
            (&[("x-ms-retry-after-ms", b"20"), ("retry-after-ms", b"10.5")], millis(20)),
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
    }

    #[test]
    fn a_date_is_read_against_the_servers_own() {
        let until = b"Sun, 06 Nov 1994 10:00:10 GMT";
        let served = b"Sun, 06 Nov 1994 10:00:00 GMT";
        assert_eq!(ask(&[("retry-after", until), ("date", served)]), (millis(10_000), 0));
        assert_eq!(ask(&[("retry-after", until), ("date", b"yesterday")]), (millis(4_233_000), 1));
        // One reading serves the century of the date and of the ask.
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
    }
}
