//! What the targets are fed with: lines of text, so that a seed and a finding can be read.

use std::{
    cell::Cell,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The first second after the year 9999.
pub const YEAR_10000: u64 = 253_402_300_800;

/// The first line of `data`, the time in seconds since 1970, and the rest.
pub fn now(data: &[u8]) -> (SystemTime, &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let (first, rest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let seconds = std::str::from_utf8(first).ok().and_then(|text| text.parse().ok()).unwrap_or(1_750_000_000);
    (at(seconds % YEAR_10000), rest)
}

pub fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

pub fn since_1970(moment: SystemTime) -> u64 {
    moment.duration_since(UNIX_EPOCH).expect("not before 1970").as_secs()
}

/// A header for each line: its first byte, `0` for the first, says which of `names` it is, the rest is its value.
pub fn headers(lines: &[u8], names: &[&'static str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some((which, value)) = line.split_first() else { continue };
        let name = names[usize::from(*which).wrapping_sub(usize::from(b'0')) % names.len()];
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(HeaderName::from_static(name), value);
        }
    }
    headers
}

/// All lines once, and then once more.
pub fn doubled(headers: &HeaderMap) -> HeaderMap {
    let mut doubled = headers.clone();
    for (name, value) in headers {
        doubled.append(name, value.clone());
    }
    doubled
}

/// The result of `read`, which may look at the clock once at most.
pub fn with_clock<T>(now: SystemTime, read: impl FnOnce(&dyn Fn() -> SystemTime) -> T) -> T {
    let reads = Cell::new(0);
    let result = read(&|| {
        reads.set(reads.get() + 1);
        now
    });
    assert!(reads.get() <= 1, "the clock was read {} times", reads.get());
    result
}
