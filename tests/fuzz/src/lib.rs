//! Converts fuzz input to times and headers. The input consists of lines of text, so that seeds and crashes are
//! readable.

use std::{
    cell::Cell,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The start of the year 10000, in seconds since 1970.
pub const YEAR_10000: u64 = 253_402_300_800;

/// Splits off the first line of `data`, and parses the line as the current time in seconds since 1970. If the number is
/// invalid, returns a fixed time.
pub fn now(data: &[u8]) -> (SystemTime, &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let (first, rest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let seconds = std::str::from_utf8(first).ok().and_then(|text| text.parse().ok()).unwrap_or(1_750_000_000);
    (at(seconds % YEAR_10000), rest)
}

/// Converts seconds since 1970 to a time.
pub fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Converts a time to seconds since 1970.
pub fn since_1970(moment: SystemTime) -> u64 {
    moment.duration_since(UNIX_EPOCH).expect("the time is before 1970").as_secs()
}

/// Creates a header from each line. The first byte of a line selects one of `names`: `0` selects the first name. The
/// rest of the line is the header's value.
pub fn headers(lines: &[u8], names: &[&'static str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some((index, value)) = line.split_first() else { continue };
        let name = names[usize::from(*index).wrapping_sub(usize::from(b'0')) % names.len()];
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(HeaderName::from_static(name), value);
        }
    }
    headers
}

/// Returns all headers, followed by a copy of each header.
pub fn doubled(headers: &HeaderMap) -> HeaderMap {
    let mut doubled = headers.clone();
    for (name, value) in headers {
        doubled.append(name, value.clone());
    }
    doubled
}

/// Calls `read` with a clock that shows `now`. Panics if `read` reads the clock twice.
pub fn with_clock<T>(now: SystemTime, read: impl FnOnce(&dyn Fn() -> SystemTime) -> T) -> T {
    let reads = Cell::new(0);
    let result = read(&|| {
        reads.set(reads.get() + 1);
        now
    });
    assert!(reads.get() <= 1, "the parser read the clock {} times instead of at most once", reads.get());
    result
}
