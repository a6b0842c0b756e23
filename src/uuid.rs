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

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The position of each byte's two hexadecimal digits in the text of a UUID.
const PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];

fn v7(time: SystemTime, high: u64, low: u64) -> [u8; 36] {
    let millis = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let high = (millis << 16) | 0x7000 | (high & 0x0fff);
    let low = (0b10 << 62) | (low >> 2);
    let digits = (u128::from(high) << 64) | u128::from(low);
    let mut text = [b'-'; 36];
    for (byte, at) in digits.to_be_bytes().into_iter().zip(PLACES) {
        text[at] = HEX[usize::from(byte >> 4)];
        text[at + 1] = HEX[usize::from(byte & 0xf)];
    }
    text
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
