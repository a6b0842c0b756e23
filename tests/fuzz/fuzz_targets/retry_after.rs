#![no_main]
//! Fuzzes `policy::retry_after`. The first line of the input is the current time, every other line is a header.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, header::RETRY_AFTER};
use libfuzzer_sys::fuzz_target;
use tower_outbound::policy::{MAX_REQUESTED_DELAY, parse_http_date, retry_after};
use tower_outbound_fuzz::{doubled, headers, now, with_clock};

const NAMES: [&str; 4] = ["retry-after", "retry-after-ms", "x-ms-retry-after-ms", "date"];

fuzz_target!(|data: &[u8]| {
    let (now, lines) = now(data);
    let headers = headers(lines, &NAMES);
    let delay = with_clock(now, |wall| retry_after(&headers, wall));
    assert!(delay.is_none_or(|delay| delay <= MAX_REQUESTED_DELAY));
    assert_eq!(delay, expected(&headers, now), "{headers:?}");

    // Repeated headers do not change the result. An additional header with a longer delay never shortens the result.
    assert_eq!(with_clock(now, |wall| retry_after(&doubled(&headers), wall)), delay, "{headers:?}");
    let mut with_longer = headers.clone();
    with_longer.append(RETRY_AFTER, HeaderValue::from_static("86400"));
    let longer = with_clock(now, |wall| retry_after(&with_longer, wall));
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
            assert_eq!(with_clock(now, |wall| retry_after(&joined, wall)), delay, "{headers:?}");
        }
    }
    // An additional invalid header does not change the result.
    for name in NAMES {
        let mut noise = headers.clone();
        noise.append(name, HeaderValue::from_static("soon"));
        assert_eq!(with_clock(now, |wall| retry_after(&noise, wall)), delay, "{headers:?}");
    }
});

/// Computes the expected result with a plain second implementation of the documented rules.
fn expected(headers: &HeaderMap, wall: SystemTime) -> Option<Duration> {
    let values = |name: &str| -> Vec<&str> {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.map(|value| value.trim_matches([' ', '\t'])).collect()
    };
    for name in ["retry-after-ms", "x-ms-retry-after-ms"] {
        if let Some(longest) = values(name).into_iter().filter_map(numbers).max() {
            return Some(Duration::from_millis(longest).min(MAX_REQUESTED_DELAY));
        }
    }
    let served = values("date").first().and_then(|date| parse_http_date(date, || wall)).unwrap_or(wall);
    let delay = |text: &str| match numbers(text) {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => Some(parse_http_date(text, || served)?.duration_since(served).unwrap_or_default()),
    };
    values("retry-after").into_iter().filter_map(delay).max().map(|delay| delay.min(MAX_REQUESTED_DELAY))
}

/// Returns the largest number of a comma-separated list, rounded up, or `None` if a member of the list is not a number.
fn numbers(text: &str) -> Option<u64> {
    let members: Option<Vec<u64>> =
        text.split(',').map(|member| rounded_up(member.trim_matches([' ', '\t']))).collect();
    members?.into_iter().max()
}

/// Parses a number and rounds it up: `12` and `12.0` give 12, `12.1` gives 13.
fn rounded_up(text: &str) -> Option<u64> {
    let is_number = |part: &&str| !part.is_empty() && part.chars().all(|char| char.is_ascii_digit());
    let parts: Vec<&str> = text.split('.').collect();
    if parts.len() > 2 || !parts.iter().all(|part| is_number(part)) {
        return None;
    }
    let whole: u64 = parts[0].parse().unwrap_or(u64::MAX);
    let has_fraction = parts.get(1).is_some_and(|part| part.chars().any(|char| char != '0'));
    Some(if has_fraction { whole.saturating_add(1) } else { whole })
}
