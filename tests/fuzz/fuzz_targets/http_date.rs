#![no_main]
//! Fuzzes `policy::parse_http_date`. The first line of the input is the current time, the rest is the date.

use std::str;

use libfuzzer_sys::fuzz_target;
use tower_outbound::policy::parse_http_date;
use tower_outbound_fuzz::{YEAR_10000, at, now, since_1970};

const FIFTY_YEARS: u64 = 50 * 366 * 86_400;

fuzz_target!(|data: &[u8]| {
    let (now, rest) = now(data);
    let Ok(text) = str::from_utf8(rest) else { return };
    let reference = httpdate::parse_http_date(text).ok();
    let Some(moment) = parse_http_date(text, || now) else {
        // `httpdate` must also reject an IMF-fixdate that this crate rejects. An IMF-fixdate has a comma as its fourth
        // character. Other formats are not checked here, because `httpdate` skips characters and ignores trailing text
        // in asctime and RFC 850 dates.
        let fixdate = text.len() == "Sun, 06 Nov 1994 08:49:37 GMT".len() && text.as_bytes()[3] == b',';
        assert!(reference.is_none() || !fixdate, "{text:?}");
        return;
    };
    assert!(text.is_ascii() && (24..=33).contains(&text.len()), "{text:?}");
    let seconds = since_1970(moment);
    // The leap second at the end of the year 9999 equals the first second of the year 10000.
    assert!(seconds <= YEAR_10000);

    let two_digit_year = text.contains('-');
    if two_digit_year {
        let (now, hundred_years) = (since_1970(now), 2 * FIFTY_YEARS);
        assert!(
            seconds <= now + FIFTY_YEARS && now <= seconds + hundred_years,
            "{text:?} is parsed too far from the current time {now}"
        );
    } else {
        assert_eq!(
            parse_http_date(text, || at(0)),
            Some(moment),
            "{text:?}: the current time must not change the parsed date"
        );
        assert!(
            reference.is_none_or(|reference| reference == moment),
            "{text:?}: httpdate parsed {reference:?} instead"
        );
    }

    if seconds < YEAR_10000 {
        let formatted = httpdate::fmt_http_date(moment);
        assert_eq!(
            parse_http_date(&formatted, || now),
            Some(moment),
            "{text:?} changes when formatted as {formatted:?} and parsed again"
        );
        // Truncated and padded dates are rejected.
        for cut in [&formatted[1..], &formatted[..formatted.len() - 1]] {
            assert_eq!(parse_http_date(cut, || now), None, "{cut:?}");
        }
        assert_eq!(parse_http_date(&format!(" {text}"), || now), None);
        assert_eq!(parse_http_date(&format!("{text} "), || now), None);
    }
});
