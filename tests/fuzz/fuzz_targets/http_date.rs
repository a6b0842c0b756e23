#![no_main]
//! `policy::parse_http_date`: the first line is the time, the rest is the date.

use std::str;

use libfuzzer_sys::fuzz_target;
use tower_outbound::policy::parse_http_date;
use tower_outbound_fuzz::{YEAR_10000, at, now, since_1970};

const FIFTY_YEARS: u64 = 50 * 366 * 86_400;

fuzz_target!(|data: &[u8]| {
    let (now, rest) = now(data);
    let Ok(text) = str::from_utf8(rest) else { return };
    let theirs = httpdate::parse_http_date(text).ok();
    let Some(moment) = parse_http_date(text, || now) else {
        // In IMF-fixdate, the one form with a comma there, theirs is the stricter; of the others it skips characters,
        // and what follows them.
        let fixdate = text.len() == "Sun, 06 Nov 1994 08:49:37 GMT".len() && text.as_bytes()[3] == b',';
        assert!(theirs.is_none() || !fixdate, "{text:?}");
        return;
    };
    assert!(text.is_ascii() && (24..=33).contains(&text.len()), "{text:?}");
    let seconds = since_1970(moment);
    // A leap second at the end of all time is the first of the next.
    assert!(seconds <= YEAR_10000);

    let two_digit_year = text.contains('-');
    if two_digit_year {
        let (now, hundred) = (since_1970(now), 2 * FIFTY_YEARS);
        assert!(seconds <= now + FIFTY_YEARS && now <= seconds + hundred, "{text:?} at {now}");
    } else {
        assert_eq!(parse_http_date(text, || at(0)), Some(moment), "{text:?}: the time is not needed");
        assert!(theirs.is_none_or(|theirs| theirs == moment), "{text:?}: {theirs:?}");
    }

    if seconds < YEAR_10000 {
        let formatted = httpdate::fmt_http_date(moment);
        assert_eq!(parse_http_date(&formatted, || now), Some(moment), "{text:?} is {formatted:?}");
        // Nothing around it, and nothing of it left out.
        for cut in [&formatted[1..], &formatted[..formatted.len() - 1]] {
            assert_eq!(parse_http_date(cut, || now), None, "{cut:?}");
        }
        assert_eq!(parse_http_date(&format!(" {text}"), || now), None);
        assert_eq!(parse_http_date(&format!("{text} "), || now), None);
    }
});
