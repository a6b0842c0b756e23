//! UUIDs for calls and idempotency keys.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::HeaderValue;

use crate::{clock, random::Random};

/// Returns a UUID of version 7 (RFC 9562): the time in milliseconds, then random bits. UUIDs of this version sort by
/// time.
pub(crate) fn v7_header(random: &Random) -> HeaderValue {
    let text = v7(clock::machine(), random.next(), random.next());
    // Hexadecimal digits and hyphens always make a valid header value.
    HeaderValue::from_maybe_shared(Bytes::from_owner(text))
        .unwrap_or_else(|_| HeaderValue::from_static("00000000-0000-7000-8000-000000000000"))
}

fn v7(time: SystemTime, high: u64, low: u64) -> [u8; 36] {
    let millis = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let high = (millis << 16) | 0x7000 | (high & 0x0fff);
    let low = (0b10 << 62) | (low >> 2);
    let [a, b, c, d] = [high >> 32, high, low >> 32, low].map(|part| hex(part as u32));
    let mut text = [b'-'; 36];
    text[..8].copy_from_slice(&a);
    text[9..13].copy_from_slice(&b[..4]);
    text[14..18].copy_from_slice(&b[4..]);
    text[19..23].copy_from_slice(&c[..4]);
    text[24..28].copy_from_slice(&c[4..]);
    text[28..].copy_from_slice(&d);
    text
}

/// Returns the eight hexadecimal digits of a number. All digits are computed at once, because this is faster than a
/// table.
fn hex(number: u32) -> [u8; 8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Spreads the number, so that each byte contains one digit.
    let mut digits = u64::from(number);
    digits = (digits | digits << 16) & 0x0000_ffff_0000_ffff;
    digits = (digits | digits << 8) & 0x00ff_00ff_00ff_00ff;
    digits = (digits | digits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = ((digits + 6 * ONES) >> 4) & ONES;
    let digit_to_letter = u64::from(b'a' - b'9' - 1);
    (digits + u64::from(b'0') * ONES + letters * digit_to_letter).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn uuid_matches_the_example_of_rfc_9562() {
        // The example is in RFC 9562, appendix A.6.
        let time = UNIX_EPOCH + Duration::from_millis(0x017F_22E2_79B0);
        let text = v7(time, 0xCC3, 0x18C4_DC0C_0C07_398F << 2);
        assert_eq!(std::str::from_utf8(&text).unwrap(), "017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
    }

    #[test]
    fn consecutive_uuids_differ() {
        let random = Random::from_entropy();
        let ids: std::collections::HashSet<_> = (0..10_000).map(|_| v7_header(&random)).collect();
        assert_eq!(ids.len(), 10_000);
    }
}
