#![no_main]
//! Fuzzes `policy::retry_after`. The first line of the input is the current time, every other line is a header.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, header::RETRY_AFTER};
use libfuzzer_sys::fuzz_target;
use tower_outbound::policy::{MAX_REQUESTED_DELAY, Scale, parse_http_date, retry_after, until};
use tower_outbound_fuzz::{doubled, headers, now, with_clock};

const NAMES: [&str; 4] = ["retry-after", "retry-after-ms", "x-ms-retry-after-ms", "date"];

fuzz_target!(|data: &[u8]| {
    let (now, lines) = now(data);
    let headers = headers(lines, &NAMES);
    let delay = with_clock(now, |wall| retry_after(&headers, &[], wall));
    assert!(delay.is_none_or(|delay| delay <= MAX_REQUESTED_DELAY));
    assert_eq!(delay, expected(&headers, now), "{headers:?}");

    // Repeated headers do not change the result. An additional header with a longer delay never shortens the result.
    assert_eq!(with_clock(now, |wall| retry_after(&doubled(&headers), &[], wall)), delay, "{headers:?}");
    let mut with_longer = headers.clone();
    with_longer.append(RETRY_AFTER, HeaderValue::from_static("86400"));
    let longer = with_clock(now, |wall| retry_after(&with_longer, &[], wall));
    assert!(longer >= delay, "{headers:?}");
    assert!(longer == delay || longer == Some(Duration::from_secs(86_400)), "{headers:?}");
    // A proxy may join repeated header fields into one field. Joined numeric fields must request the same delay as the
    // separate fields.
    for name in NAMES {
        let lines: Vec<_> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        if name != "date" && !lines.is_empty() && lines.iter().all(|line| numbers(line).is_some()) {
            let mut joined = headers.clone();
            joined.insert(
                name,
                HeaderValue::from_str(&lines.join(", "))
                    .expect("joined header values are a valid header value"),
            );
            assert_eq!(with_clock(now, |wall| retry_after(&joined, &[], wall)), delay, "{headers:?}");
        }
    }
    // An additional invalid header does not change the result.
    for name in NAMES {
        let mut noise = headers.clone();
        noise.append(name, HeaderValue::from_static("soon"));
        assert_eq!(with_clock(now, |wall| retry_after(&noise, &[], wall)), delay, "{headers:?}");
    }
});

/// Computes the expected result with a plain second implementation of the documented rules. The target `moment` tests the
/// forms of single values.
fn expected(headers: &HeaderMap, wall: SystemTime) -> Option<Duration> {
    let values = |name: &str| -> Vec<&str> {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.map(|value| value.trim_matches([' ', '\t'])).collect()
    };
    let served = values("date").first().and_then(|date| parse_http_date(date, || wall)).unwrap_or(wall);
    let names = [
        ("retry-after-ms", Scale::Millis),
        ("x-ms-retry-after-ms", Scale::Millis),
        ("retry-after", Scale::Seconds),
    ];
    names.into_iter().find_map(|(name, scale)| {
        values(name).into_iter().filter_map(|text| longest(text, scale, served)).max()
    })
}

/// Returns the delay of a value, or the longest delay of a comma-separated list. A single negative value states no
/// delay, and in a list it is zero.
fn longest(text: &str, scale: Scale, served: SystemTime) -> Option<Duration> {
    if text.starts_with('-') && !text.contains(',') {
        return None;
    }
    let read = |text: &str| until(text.trim_matches([' ', '\t']), scale, || served);
    if let Some(delay) = read(text) {
        return Some(delay);
    }
    let members: Option<Vec<_>> = text.split(',').map(read).collect();
    members?.into_iter().max()
}

/// Returns whether each member of a comma-separated list is a number.
fn numbers(text: &str) -> Option<()> {
    let is_number = |part: &&str| !part.is_empty() && part.chars().all(|char| char.is_ascii_digit());
    let is_decimal = |text: &str| {
        let parts: Vec<&str> = text.trim_matches([' ', '\t']).split('.').collect();
        parts.len() <= 2 && parts.iter().all(|part| is_number(part))
    };
    text.split(',').all(is_decimal).then_some(())
}
