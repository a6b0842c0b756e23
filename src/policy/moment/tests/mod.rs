mod http_date;

use std::cell::Cell;

use proptest::prelude::*;

use super::*;

/// Thu, 01 Jan 2026 01:00:00 GMT.
const SERVED: u64 = 1_767_229_200;

fn read(text: &str, scale: Scale) -> Option<Duration> {
    let reads = Cell::new(0);
    let delay = until(text, scale, || {
        reads.set(reads.get() + 1);
        UNIX_EPOCH + Duration::from_secs(SERVED)
    });
    assert!(reads.get() <= 1, "{text}");
    delay
}

const fn millis(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis))
}

const MOST: Option<Duration> = Some(MAX_REQUESTED_DELAY);

#[test]
fn reads_every_form_of_a_duration_and_of_a_moment() {
    let cases = [
        ("0", millis(0)),
        ("030", millis(30_000)),
        ("2.0", millis(2_000)),
        ("64.57", millis(64_570)),
        ("0.0000000001", Some(Duration::from_nanos(1))),
        ("1.9999999999", Some(Duration::from_secs(2))),
        ("2163603", millis(2_163_603_000)),
        ("1000000000", MOST),
        ("-1", millis(0)),
        ("-27.5", millis(0)),
        ("1000000000.5", millis(0)),
        ("1767229500", millis(300_000)),
        ("1767229264.57", millis(64_570)),
        ("1767229200", millis(0)),
        ("999999999999", MOST),
        ("1767229260000", millis(60_000)),
        ("1767229260000.5", Some(Duration::from_nanos(60_000_500_000))),
        ("999999999999999", MOST),
        ("1767229260000000", MOST),
        ("99999999999999999999999999", MOST),
        ("12ms", millis(12)),
        ("547ms", millis(547)),
        ("1s", millis(1_000)),
        ("6m0s", millis(360_000)),
        ("2m52.8s", millis(172_800)),
        ("1h2m3s4ms5us6ns", Some(Duration::from_nanos(3_723_004_005_006))),
        ("1d", millis(86_400_000)),
        ("0.1ns", Some(Duration::from_nanos(1))),
        ("99999999999999999999999999d", MOST),
        ("Thu, 01 Jan 2026 01:00:30 GMT", millis(30_000)),
        ("Thursday, 01-Jan-26 01:00:30 GMT", millis(30_000)),
        ("Thu Jan  1 01:00:30 2026", millis(30_000)),
        ("Thu, 01 Jan 2026 00:59:59 GMT", millis(0)),
        ("2026-01-01T01:00:25Z", millis(25_000)),
        ("2026-01-01t01:00:25z", millis(25_000)),
        ("2026-01-01 01:00:25Z", millis(25_000)),
        ("2026-01-01T01:00:25.0625Z", Some(Duration::from_micros(25_062_500))),
        ("2026-01-01T01:00:25.0000000001Z", Some(Duration::from_nanos(25_000_000_001))),
        ("2026-01-01T02:00:25+01:00", millis(25_000)),
        ("2025-12-31T19:30:25-05:30", millis(25_000)),
        ("2026-01-01T01:00:60Z", millis(60_000)),
        ("2026-01-01T00:00:00Z", millis(0)),
        ("2026-01-01T01:05Z", millis(360_000)),
        ("2026-01-01T02:05+01:00", millis(360_000)),
        ("2026-01-01T23:59Z", millis(82_800_000)),
        ("9999-12-31T23:59:59Z", MOST),
    ];
    for (text, expected) in cases {
        assert_eq!(read(text, Scale::Seconds), expected, "{text}");
    }
    let cases = [
        ("1500", millis(1_500)),
        ("1500.25", Some(Duration::from_micros(1_500_250))),
        ("600000", millis(600_000)),
        ("1767229200", millis(1_767_229_200)),
        ("1767229260000", millis(60_000)),
        ("6m0s", millis(360_000)),
    ];
    for (text, expected) in cases {
        assert_eq!(read(text, Scale::Millis), expected, "{text}");
    }
}

#[test]
fn rejects_a_text_that_is_no_duration_and_no_moment() {
    for text in [
        "",
        "-",
        "+1",
        ".5",
        "5.",
        "1.5.2",
        "1e3",
        "0x10",
        "1 2",
        "soon",
        "1 s",
        "1s ",
        "s",
        "5m-1s",
        "1m5",
        "1sec",
        "1S",
        "1.s",
        "1,5",
        "--1",
        "1m-",
        "-1s",
        "2026-01-01",
        "2026-01-01T01:00:25",
        "2026-01-01T01:00:25.Z",
        "2026-01-01T01:00:25Zx",
        "2026-01-01T01Z",
        "2026-01-01T01:60Z",
        "2026-01-01T1:00Z",
        "2026-01-01T01:00.5Z",
        "2026-01-01T01:00",
        "2026-01-01T01:0٣Z",
        "2026-1-1T01:00:25Z",
        "2026-02-30T01:00:25Z",
        "2026-13-01T01:00:25Z",
        "2026-00-01T01:00:25Z",
        "1969-12-31T23:59:59Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T01:00:25+24:00",
        "2026-01-01T01:00:25+01:60",
        "2026-01-01T01:00:25+1:00",
        "2026-01-01T01:00:25z01:00",
        "2026-01-01x01:00:25Z",
        "٣",
        "1µs",
        "Sun, 06 Nov 1994",
        "2026-01-01T01:00:2٣Z",
    ] {
        assert_eq!(read(text, Scale::Seconds), None, "{text}");
        assert_eq!(read(text, Scale::Millis), None, "{text}");
    }
}

/// Returns the date and the time of day of a moment, by the crate `httpdate`.
fn parts(moment: u64) -> (String, String) {
    let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(moment));
    let [_, day, month, year, time, _] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    (format!("{year}-{:02}-{day}", months.find(month).unwrap() / 3 + 1), time.to_owned())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Every form of the same moment gives the same delay, and never a shorter one.
    #[test]
    fn every_form_of_a_moment_gives_the_same_delay(
        ahead in 0..900_000_000_u64, nanos in 0..1_000_000_000_u32, east in -1_439..1_440_i64,
    ) {
        let at = SERVED + ahead;
        let exact = Duration::new(ahead, nanos);
        let within = |text: String, step: Duration| {
            let delay = read(&text, Scale::Seconds).unwrap_or_else(|| panic!("{text}"));
            prop_assert!(delay >= exact && delay < exact + step, "{}: {:?}, not {:?}", text, delay, exact);
            Ok(())
        };
        let nano = Duration::from_nanos(1);
        within(format!("{ahead}.{nanos:09}"), nano)?;
        within(format!("{at}.{nanos:09}"), nano)?;
        let millis = u128::from(at) * 1_000 + u128::from(nanos.div_ceil(1_000_000));
        within(millis.to_string(), Duration::from_millis(1))?;
        let (hours, minutes, seconds) = (ahead / 3_600, ahead / 60 % 60, ahead % 60);
        within(format!("{hours}h{minutes}m{seconds}.{nanos:09}s"), nano)?;
        let (date, time) = parts(at.checked_add_signed(east * 60).unwrap());
        let sign = if east < 0 { '-' } else { '+' };
        let offset = format!("{sign}{:02}:{:02}", east.abs() / 60, east.abs() % 60);
        within(format!("{date}T{time}.{nanos:09}{offset}"), nano)?;
        within(format!("{date}T{time}.{nanos:09}{}", offset.replace(':', "")), nano)?;
        let up = at + u64::from(nanos > 0);
        within(httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(up)), Duration::from_secs(1))?;
    }

    #[test]
    fn any_text_gives_a_delay_of_at_most_30_years(
        text in ".{0,40}", close in "[-+0-9.:TZdhmsun ]{0,40}", served in any::<u32>(),
    ) {
        for text in [text, close] {
            for scale in [Scale::Seconds, Scale::Millis] {
                let delay = until(&text, scale, || UNIX_EPOCH + Duration::from_secs(served.into()));
                prop_assert!(delay.is_none_or(|delay| delay <= MAX_REQUESTED_DELAY), "{}", text);
            }
        }
    }
}
