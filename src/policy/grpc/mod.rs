//! Determines from the response headers how a gRPC call ended.
//!
//! If a call fails before its first message, its response consists of headers only ("Trailers-Only" in gRPC over
//! HTTP/2): HTTP 200 with `grpc-status`. Response headers without `grpc-status` commit the call. A committed call is
//! not retried, whatever its trailers contain (proposal A6, gRPC's design of retries).

#[cfg(test)]
mod tests;

use std::{fmt, time::Duration};

use http::{HeaderMap, HeaderName, StatusCode};

use super::{
    header_values::{MAX_REQUESTED_DELAY, values, whole_number},
    retry::RetryDecision,
};

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_STATUS_DETAILS_BIN: HeaderName = HeaderName::from_static("grpc-status-details-bin");
static GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// A gRPC status code.
///
/// ```
/// use http::{HeaderMap, HeaderValue, StatusCode};
/// use tower_outbound::retry::GrpcCode;
///
/// let headers = HeaderMap::from_iter([("grpc-status".parse()?, HeaderValue::from_static("14"))]);
/// assert_eq!(GrpcCode::of(StatusCode::OK, &headers), Some(GrpcCode::UNAVAILABLE));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code(u8);

macro_rules! codes {
    ($($number:literal $name:ident $what:literal),* $(,)?) => {
        impl Code {
            $(#[doc = concat!(stringify!($number), ": ", $what, ".")]
            pub const $name: Self = Self($number);)*

            /// Returns the name of the code in gRPC's documentation.
            pub(crate) fn name(self) -> &'static str {
                match self.0 {
                    $($number => stringify!($name),)*
                    _ => "UNKNOWN",
                }
            }
        }
    };
}

codes! {
    0 OK "success",
    1 CANCELLED "cancelled, usually by the caller",
    2 UNKNOWN "an error without a code, or an unknown code",
    3 INVALID_ARGUMENT "an argument that is invalid in every state of the server",
    4 DEADLINE_EXCEEDED "the deadline expired, perhaps after the call was processed",
    5 NOT_FOUND "the resource does not exist",
    6 ALREADY_EXISTS "the resource to create already exists",
    7 PERMISSION_DENIED "the caller has no permission",
    8 RESOURCE_EXHAUSTED "a quota or a resource is exhausted",
    9 FAILED_PRECONDITION "the call fails until the state of the server changes",
    10 ABORTED "a conflict, such as between two transactions",
    11 OUT_OF_RANGE "a position past the end of a range",
    12 UNIMPLEMENTED "the server does not implement the method",
    13 INTERNAL "an internal error",
    14 UNAVAILABLE "the service is temporarily unavailable",
    15 DATA_LOSS "permanent loss or corruption of data",
    16 UNAUTHENTICATED "no valid credentials",
}

impl Code {
    /// Returns the code in the header `grpc-status`, or [`UNKNOWN`](Self::UNKNOWN) if the header is invalid.
    ///
    /// For a response without `grpc-status`, this function costs one header lookup.
    pub(crate) fn in_head(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(&GRPC_STATUS)?.to_str().ok();
        let number = text.and_then(whole_number).and_then(|number| u8::try_from(number).ok());
        Some(number.filter(|number| *number <= Self::UNAUTHENTICATED.0).map_or(Self::UNKNOWN, Self))
    }

    /// Returns the code of a call that ended with its response headers. Returns `None` if messages follow the headers.
    ///
    /// If a response has no `grpc-status`, for example because a proxy sent it, the HTTP status determines the code
    /// (`http-grpc-status-mapping` of the gRPC project).
    pub fn of(status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        Self::in_head(headers).or(match status.as_u16() {
            200 => None,
            400 => Some(Self::INTERNAL),
            401 => Some(Self::UNAUTHENTICATED),
            403 => Some(Self::PERMISSION_DENIED),
            404 => Some(Self::UNIMPLEMENTED),
            429 | 502 | 503 | 504 => Some(Self::UNAVAILABLE),
            _ => Some(Self::UNKNOWN),
        })
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The codes that report a temporary failure.
pub(crate) const TEMPORARY: [Code; 2] = [Code::UNAVAILABLE, Code::RESOURCE_EXHAUSTED];

/// The value of `grpc-retry-pushback-ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushback {
    /// The next attempt must wait this long.
    After(Duration),
    /// The server forbids another attempt.
    Never,
}

/// Reads `grpc-retry-pushback-ms`: whole milliseconds, as a signed 32-bit number. A negative, repeated or invalid value
/// forbids a retry (gRPC proposal A6, "Pushback").
pub(crate) fn pushback(headers: &HeaderMap) -> Option<Pushback> {
    let count = headers.get_all(&GRPC_RETRY_PUSHBACK_MS).iter().count();
    let one = values(headers, &GRPC_RETRY_PUSHBACK_MS).next().filter(|_| count == 1);
    let millis = one.and_then(|text| text.parse::<i32>().ok()?.try_into().ok());
    let after = |millis| Pushback::After(Duration::from_millis(millis));
    (count > 0).then(|| millis.map_or(Pushback::Never, after))
}

/// Classifies a response. A failed call is retried if its code is one of `codes`.
///
/// A negative `grpc-retry-pushback-ms` forbids the retry. A positive value does not cause a retry if the code is not
/// one of `codes`. The gRPC libraries for C and Go interpret proposal A6 in this way, but the library for Java does
/// not.
pub(crate) fn classify(status: StatusCode, headers: &HeaderMap, codes: &[Code]) -> RetryDecision {
    match Code::of(status, headers) {
        None | Some(Code::OK) => RetryDecision::Success,
        Some(code) if !codes.contains(&code) || pushback(headers) == Some(Pushback::Never) => {
            RetryDecision::NotRetryable
        }
        Some(Code::RESOURCE_EXHAUSTED) => RetryDecision::Throttled,
        Some(_) => RetryDecision::retry(Some(status)),
    }
}

/// Returns whether the server states that it did not process the call: `RESOURCE_EXHAUSTED` with a delay, unless a
/// negative pushback forbids a retry. Returns `None` if the response headers have no `grpc-status`.
pub(super) fn is_rejected(headers: &HeaderMap) -> Option<bool> {
    let is_exhausted = Code::in_head(headers)? == Code::RESOURCE_EXHAUSTED;
    let permits_retry = || pushback(headers) != Some(Pushback::Never) && requested_delay(headers).is_some();
    Some(is_exhausted && permits_retry())
}

/// Returns the delay that the server requested in its response to a failed gRPC call: the longer of its pushback and
/// the delay of a `google.rpc.RetryInfo` in `grpc-status-details-bin`.
pub(super) fn requested_delay(headers: &HeaderMap) -> Option<Duration> {
    let code = Code::in_head(headers).filter(|code| *code != Code::OK)?;
    let pushback = match pushback(headers) {
        Some(Pushback::After(delay)) => Some(delay),
        _ => None,
    };
    pushback.max(retry_info(headers, code))
}

/// Ignores a repeated header.
fn retry_info(headers: &HeaderMap, code: Code) -> Option<Duration> {
    let count = headers.get_all(&GRPC_STATUS_DETAILS_BIN).iter().count();
    let status = values(headers, &GRPC_STATUS_DETAILS_BIN).next().filter(|_| count == 1)?;
    retry_delay(status, code.0).map(|delay| delay.min(MAX_REQUESTED_DELAY))
}

/// Returns the `retry_delay` in the details of a status with this code, or the longest of several delays.
///
/// Returns `None` if any part of the status is malformed, or if a delay is missing or negative.
fn retry_delay(base64: &str, code: u8) -> Option<Duration> {
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
