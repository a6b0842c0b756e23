#![no_main]
//! Fuzzes `policy::until`. The first line of the input is the current time, the rest is the text of a header.

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tower_outbound::policy::{MAX_REQUESTED_DELAY, Scale, until};
use tower_outbound_fuzz::now;

fuzz_target!(|data: &[u8]| {
    let (now, text) = now(data);
    let Ok(text) = std::str::from_utf8(text) else { return };
    for scale in [Scale::Seconds, Scale::Millis] {
        let Some(delay) = until(text, scale, || now) else { continue };
        assert!(delay <= MAX_REQUESTED_DELAY, "{text:?}");
        // The century of a two-digit year depends on the current time, and `httpdate` chooses it in another way.
        if text.contains("day, ") {
            continue;
        }
        let later = until(text, scale, || now + Duration::from_secs(60)).expect("the text has a valid form");
        assert!(
            later <= delay && later + Duration::from_secs(60) >= delay,
            "{text:?}: {delay:?} and, a minute later, {later:?}"
        );
        if let Ok(number) = text.parse::<u64>() {
            let plain = match scale {
                Scale::Seconds if number <= 1_000_000_000 => Some(Duration::from_secs(number)),
                Scale::Millis if number < 1_000_000_000_000 => Some(Duration::from_millis(number)),
                _ => None,
            };
            let plain = plain.map(|plain| plain.min(MAX_REQUESTED_DELAY));
            assert!(plain.is_none_or(|plain| plain == delay), "{text:?}: {delay:?}");
        }
        if let Ok(date) = httpdate::parse_http_date(text) {
            let exact = date.duration_since(now).unwrap_or_default().min(MAX_REQUESTED_DELAY);
            assert_eq!(delay, exact, "{text:?}");
        }
    }
});
