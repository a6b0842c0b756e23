//! Reads the delay of a `google.rpc.RetryInfo` from a `google.rpc.Status`, in base64 and Protocol Buffers. No crate
//! among the default dependencies decodes either.

use std::time::Duration;

/// Returns the `retry_delay` in the details of a status with this code, or the longest of several delays.
///
/// Returns `None` if any part of the status is malformed, or if a delay is missing or negative.
pub(super) fn retry_delay(base64: &str, code: u8) -> Option<Duration> {
    let bytes = decode(base64)?;
    let status = Message::parse(&bytes)?;
    let mut longest = None;
    for detail in status.messages(3) {
        // Protocol Buffers use the last of several values of a field.
        let any = Message::parse(detail)?;
        if any.messages(1).last().is_some_and(|url| url.ends_with(b"/google.rpc.RetryInfo")) {
            let retry_info = Message::parse(any.messages(2).last()?)?;
            let delay = Message::parse(retry_info.messages(1).last()?)?;
            let nanos = u32::try_from(delay.number(2)).ok().filter(|nanos| *nanos < 1_000_000_000)?;
            // The highest bit of a negative number is set.
            let seconds = i64::try_from(delay.number(1)).ok()?.unsigned_abs();
            longest = longest.max(Some(Duration::new(seconds, nanos)));
        }
    }
    longest.filter(|_| status.number(1) == u64::from(code))
}

/// The fields of a message: their numbers and their values.
struct Message<'a>(Vec<(u64, Value<'a>)>);

enum Value<'a> {
    Number(u64),
    /// A message, a text or bytes.
    Message(&'a [u8]),
}

impl<'a> Message<'a> {
    /// Skips numbers of a fixed length, because no message here has such a field.
    fn parse(mut message: &'a [u8]) -> Option<Self> {
        let mut fields = Vec::new();
        while !message.is_empty() {
            let tag = varint(&mut message)?;
            match tag & 7 {
                0 => fields.push((tag >> 3, Value::Number(varint(&mut message)?))),
                1 => drop(take(&mut message, 8)?),
                2 => {
                    let length = varint(&mut message)?;
                    fields.push((tag >> 3, Value::Message(take(&mut message, length)?)));
                }
                5 => drop(take(&mut message, 4)?),
                _ => return None,
            }
        }
        Some(Self(fields))
    }

    /// Returns the number in this field, or 0 if the field is missing.
    fn number(&self, field: u64) -> u64 {
        let number = |(number, value): &(u64, Value<'a>)| match value {
            Value::Number(value) if *number == field => Some(*value),
            _ => None,
        };
        self.0.iter().rev().find_map(number).unwrap_or(0)
    }

    /// Returns the messages in this field.
    fn messages(&self, field: u64) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter_map(move |(number, value)| match value {
            Value::Message(bytes) if *number == field => Some(*bytes),
            _ => None,
        })
    }
}

fn take<'a>(message: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (taken, rest) = message.split_at_checked(length.try_into().ok()?)?;
    *message = rest;
    Some(taken)
}

/// Reads a number with seven bits in each byte, in at most ten bytes.
fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *take(message, 1)?.first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Decodes base64 (RFC 4648 §4). gRPC sends it without padding, and accepts it with padding.
fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(text.len());
    for chunk in text.chunks(4) {
        let mut group = 0_u32;
        for place in 0..4 {
            let sextet = match chunk.get(place) {
                Some(byte @ b'A'..=b'Z') => byte - b'A',
                Some(byte @ b'a'..=b'z') => byte - b'a' + 26,
                Some(byte @ b'0'..=b'9') => byte - b'0' + 52,
                Some(b'+') => 62,
                Some(b'/') => 63,
                Some(_) => return None,
                None => 0,
            };
            group = group << 6 | u32::from(sextet);
        }
        // A group of n characters has n - 1 bytes, so a single character is malformed.
        bytes.extend(group.to_be_bytes().get(1..chunk.len()).filter(|group| !group.is_empty())?);
    }
    Some(bytes)
}
