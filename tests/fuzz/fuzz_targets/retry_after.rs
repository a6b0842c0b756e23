#![no_main]
//! `policy::retry_after`: the first line is the time, each other line a header.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, header::RETRY_AFTER};
use libfuzzer_sys::fuzz_target;
use tower_outbound::policy::{MAX_ASK, parse_http_date, retry_after};
use tower_outbound_fuzz::{doubled, headers, now, with_clock};

const NAMES: [&str; 4] = ["retry-after", "retry-after-ms", "x-ms-retry-after-ms", "date"];

fuzz_target!(|data: &[u8]| {
    let (now, lines) = now(data);
    let headers = headers(lines, &NAMES);
    let asked = with_clock(now, |wall| retry_after(&headers, wall));
    assert!(asked.is_none_or(|asked| asked <= MAX_ASK));
    assert_eq!(asked, expected(&headers, now), "{headers:?}");

    // Said twice is said once, and one who says more in another line is heard.
    assert_eq!(with_clock(now, |wall| retry_after(&doubled(&headers), wall)), asked, "{headers:?}");
    let mut more = headers.clone();
    more.append(RETRY_AFTER, HeaderValue::from_static("86400"));
    let longer = with_clock(now, |wall| retry_after(&more, wall));
    assert!(longer >= asked, "{headers:?}");
    assert!(longer == asked || longer == Some(Duration::from_secs(86_400)), "{headers:?}");
    // What can't be read changes nothing.
    for name in NAMES {
        let mut noise = headers.clone();
        noise.append(name, HeaderValue::from_static("soon"));
        assert_eq!(with_clock(now, |wall| retry_after(&noise, wall)), asked, "{headers:?}");
    }
});

/// The rules once more, as plainly as they are documented.
fn expected(headers: &HeaderMap, wall: SystemTime) -> Option<Duration> {
    let values = |name: &str| -> Vec<&str> {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.map(|value| value.trim_matches([' ', '\t'])).collect()
    };
    let number = |text: &str| -> Option<u64> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    for name in ["retry-after-ms", "x-ms-retry-after-ms"] {
        if let Some(longest) = values(name).into_iter().filter_map(number).max() {
            return Some(Duration::from_millis(longest).min(MAX_ASK));
        }
    }
    let served = values("date").first().and_then(|date| parse_http_date(date, wall)).unwrap_or(wall);
    let ask = |text: &str| match number(text) {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => Some(parse_http_date(text, served)?.duration_since(served).unwrap_or_default()),
    };
    values("retry-after").into_iter().filter_map(ask).max().map(|asked| asked.min(MAX_ASK))
}
