use std::time::Duration;

use proptest::prelude::*;

use super::super::*;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Generates a second from 1970 to the end of 9999.
fn moments() -> impl Strategy<Value = u64> {
    0..(days_to(10_000, 1, 1) - days_to(1970, 1, 1)) * DAY
}

/// Returns the year, month and day.
fn date_of(since_1970: u64) -> (u64, u64, u64) {
    let days = days_to(1970, 1, 1) + since_1970;
    let year = (1970..10_000).rfind(|year| days_to(*year, 1, 1) <= days).unwrap();
    let month = (1..=12).rfind(|month| days_to(year, *month, 1) <= days).unwrap();
    (year, month, days - days_to(year, month, 1) + 1)
}

/// Formats a time as IMF-fixdate, rfc850-date and asctime-date. 1970-01-01 was a Thursday.
fn formats(seconds: u64) -> [String; 3] {
    let (year, month, day) = date_of(seconds / DAY);
    let weekday = WEEKDAYS[(seconds / DAY + 4) as usize % 7];
    let (short, month) = (&weekday[..3], MONTHS[month as usize - 1]);
    let second = seconds % DAY;
    let time = format!("{:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60);
    [
        format!("{short}, {day:02} {month} {year} {time} GMT"),
        format!("{weekday}, {day:02}-{month}-{:02} {time} GMT", year % 100),
        format!("{short} {month} {day:2} {time} {year}"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn parses_every_second_from_1970_to_9999(seconds in moments(), years in -49i64..=49) {
        // The second format has a two-digit year. Its century is correct for any `now` within 50 years of the date.
        let now = at(seconds.saturating_add_signed(years * 365 * DAY as i64));
        for text in formats(seconds) {
            prop_assert_eq!(parse_http_date(&text, || now), Some(at(seconds)), "{}", text);
        }
    }

    #[test]
    fn parsing_any_text_causes_no_panic(
        text in ".*", seconds in moments(), now in moments(),
        form in 0usize..3, cut in 0usize..40, put in ".{0,3}",
    ) {
        let _ = parse_http_date(&text, || at(now));
        let mut text = formats(seconds)[form].clone();
        let cut = cut.min(text.len());
        text.replace_range(cut..(cut + put.len()).min(text.len()), &put);
        let _ = parse_http_date(&text, || at(now));
    }
}

#[test]
fn two_digit_year_is_at_most_fifty_years_ahead() {
    let parse = |date: &str, now: &str| {
        let now = parse_http_date(now, || UNIX_EPOCH).unwrap();
        parse_http_date(date, || now)
            .map(|moment| date_of((moment.duration_since(UNIX_EPOCH).unwrap().as_secs()) / DAY).0)
    };
    let cases = [
        ("Sunday, 06-Nov-94 08:49:37 GMT", "Sun, 06 Nov 2044 08:49:37 GMT", Some(2094)),
        ("Sunday, 06-Nov-94 08:49:38 GMT", "Sun, 06 Nov 2044 08:49:37 GMT", Some(1994)),
        ("Sunday, 06-Nov-94 08:49:37 GMT", "Sun, 06 Nov 2025 08:49:37 GMT", Some(1994)),
        ("Sunday, 06-Nov-01 08:49:37 GMT", "Sun, 06 Nov 2099 08:49:37 GMT", Some(2101)),
        ("Sunday, 06-Nov-69 08:49:37 GMT", "Sun, 06 Nov 2025 08:49:37 GMT", Some(2069)),
        ("Sunday, 06-Nov-69 08:49:37 GMT", "Sun, 06 Nov 2015 08:49:37 GMT", None), // 1969 is before 1970
    ];
    for (date, now, year) in cases {
        assert_eq!(parse(date, now), year, "{date} at {now}");
    }
}

#[test]
fn two_digit_year_maps_to_a_year_before_10000_with_any_clock() {
    let date = "Friday, 31-Dec-99 00:00:00 GMT";
    for seconds in [252_000_000_000, 253_402_300_800, i64::MAX as u64] {
        let read =
            UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).map(|now| parse_http_date(date, || now));
        assert!(read.is_none_or(|read| read == parse_http_date("Fri, 31 Dec 9999 00:00:00 GMT", || at(0))));
    }
}

#[test]
fn accepts_only_the_three_http_date_formats() {
    let good = [
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Mon, 06 Nov 1994 08:49:37 GMT", 784_111_777), // a Sunday, written as a Monday
        ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
        ("Sun Nov  6 08:49:37 1994", 784_111_777),
        ("Sun Nov 06 08:49:37 1994", 784_111_777),
        ("Tue, 29 Feb 2000 00:00:00 GMT", 951_782_400),
        ("Sat, 31 Dec 2016 23:59:60 GMT", 1_483_228_800), // a leap second
        ("Fri, 31 Dec 9999 23:59:60 GMT", 253_402_300_800),
    ];
    for (text, seconds) in good {
        assert_eq!(parse_http_date(text, || UNIX_EPOCH), Some(at(seconds)), "{text}");
    }
    let bad = [
        "",
        "GMT",
        ", GMT",
        "Sun, ",
        "Sun, GMT",
        "Sun,  GMT",
        "sun, 06 Nov 1994 08:49:37 GMT",
        "Sun, 06 nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 gmt",
        "Sun, 06 Nov 1994 08:49:37 UTC",
        "Sun, 06 Nov 1994 08:49:37",
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 94 08:49:37 GMT",
        "Sun, 06-Nov-94 08:49:37 GMT",
        "Sunday, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-1994 08:49:37 GMT",
        "Su, 06 Nov 1994 08:49:37 GMT",
        "Sun,06 Nov 1994 08:49:37 GMT",
        " Sun, 06 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT ",
        "Sun, 06 Nov 1994  8:49:37 GMT",
        "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun, 06 Nov 1994 08:60:00 GMT",
        "Sun, 06 Nov 1994 08:49:61 GMT",
        "Sun, 00 Nov 1994 08:49:37 GMT",
        "Sun, 31 Nov 1994 08:49:37 GMT",
        "Thu, 29 Feb 2100 00:00:00 GMT",
        "Wed, 31 Dec 1969 23:59:59 GMT",
        "Sun, +6 Nov 1994 08:49:37 GMT",
        "Sun Nov 6 08:49:37 1994",
        "Sun Nov  6 08:49:37 94",
        "Sun Nov  6 08:49:37 1994 GMT",
        "Sun Nov  0 08:49:37 1994",
        "1994-11-06T08:49:37Z",
        "Sün Nov  6 08:49:37 1994",
    ];
    for text in bad {
        assert_eq!(parse_http_date(text, || UNIX_EPOCH), None, "{text}");
    }
}
