//! What a gRPC server says in the head of an answer: how the call ended, and when to come back.
//!
//! A call that fails before its first message is answered by a head alone ("Trailers-Only", gRPC over HTTP/2): HTTP 200
//! with `grpc-status` in it. A head without a status is the beginning of an answer, and with it the call is committed:
//! gRPC's own design of retries (proposal A6) sends nothing again after that, whatever its trailers say.

use std::{fmt, time::Duration};

use http::{HeaderMap, HeaderName, StatusCode};

use super::{
    classify::{Cause, Verdict},
    feedback::{values, whole_number},
};

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// How a gRPC call ended.
///
/// ```
/// use http::{HeaderMap, HeaderValue, StatusCode};
/// use tower_outbound::policy::grpc::Code;
///
/// let headers = HeaderMap::from_iter([("grpc-status".parse()?, HeaderValue::from_static("14"))]);
/// assert_eq!(Code::of(StatusCode::OK, &headers), Some(Code::UNAVAILABLE));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(u8);

macro_rules! codes {
    ($($number:literal $name:ident $what:literal),* $(,)?) => {
        impl Code {
            $(#[doc = concat!(stringify!($number), ": ", $what, ".")]
            pub const $name: Self = Self($number);)*

            /// As it is written in gRPC's own documents.
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
    0 OK "it did what it should",
    1 CANCELLED "given up, by the caller as a rule",
    2 UNKNOWN "an error that has no code of its own, or a code that isn't known",
    3 INVALID_ARGUMENT "an argument that is wrong whatever the state of the server",
    4 DEADLINE_EXCEEDED "the deadline passed; it may have been done all the same",
    5 NOT_FOUND "what was asked for is not there",
    6 ALREADY_EXISTS "what was to be made is there",
    7 PERMISSION_DENIED "the caller may not do this",
    8 RESOURCE_EXHAUSTED "a quota or a resource is used up",
    9 FAILED_PRECONDITION "the state of the server must be changed first",
    10 ABORTED "a conflict, such as a transaction's",
    11 OUT_OF_RANGE "past the end of something",
    12 UNIMPLEMENTED "the server has no such method",
    13 INTERNAL "something is broken",
    14 UNAVAILABLE "the service can't be used for now",
    15 DATA_LOSS "data is lost or corrupted for good",
    16 UNAUTHENTICATED "no valid credentials",
}

impl Code {
    /// In the head of an answer, where the call ended with that; a number that isn't known is [`UNKNOWN`](Self::UNKNOWN).
    ///
    /// A plain answer of another kind has no such field, and pays one look-up for it.
    pub(crate) fn in_head(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(&GRPC_STATUS)?.to_str().ok();
        let number = text.and_then(whole_number).and_then(|number| u8::try_from(number).ok());
        Some(number.filter(|number| *number <= Self::UNAUTHENTICATED.0).map_or(Self::UNKNOWN, Self))
    }

    /// Of a call that ended with the head of its answer; none when the answer only begins there.
    ///
    /// An answer that is no gRPC server's, a proxy's say, has none of its own. What it stands for then is given by its
    /// HTTP status (`http-grpc-status-mapping` of the gRPC project).
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

/// Some of the codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Codes(u32);

impl Codes {
    /// Those that pass by themselves: [`UNAVAILABLE`](Code::UNAVAILABLE) and
    /// [`RESOURCE_EXHAUSTED`](Code::RESOURCE_EXHAUSTED).
    pub const PASSING: Self = Self(0).with(Code::UNAVAILABLE).with(Code::RESOURCE_EXHAUSTED);

    /// These and that one.
    pub const fn with(self, code: Code) -> Self {
        Self(self.0 | 1 << code.0)
    }

    /// These without that one.
    pub const fn without(self, code: Code) -> Self {
        Self(self.0 & !(1 << code.0))
    }

    /// Whether that one is among them.
    pub const fn contains(self, code: Code) -> bool {
        self.0 & 1 << code.0 != 0
    }
}

impl fmt::Debug for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((0..=16).map(Code).filter(|code| self.contains(*code))).finish()
    }
}

/// What the server says of another attempt, in `grpc-retry-pushback-ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushback {
    /// Not before this has passed.
    After(Duration),
    /// None at all.
    Never,
}

/// What the server says of another attempt: whole milliseconds, as a signed number of 32 bits. A negative one, several, or
/// what can't be read as one is the server's wish that there be none (A6, "Pushback").
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, HeaderValue};
/// use tower_outbound::policy::grpc::{Pushback, pushback};
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(pushback(&headers), None);
/// headers.insert("grpc-retry-pushback-ms", HeaderValue::from_static("250"));
/// assert_eq!(pushback(&headers), Some(Pushback::After(Duration::from_millis(250))));
/// headers.insert("grpc-retry-pushback-ms", HeaderValue::from_static("-1"));
/// assert_eq!(pushback(&headers), Some(Pushback::Never));
/// ```
pub fn pushback(headers: &HeaderMap) -> Option<Pushback> {
    let said = headers.get_all(&GRPC_RETRY_PUSHBACK_MS).iter().count();
    let one = values(headers, &GRPC_RETRY_PUSHBACK_MS).next().filter(|_| said == 1);
    let millis = one.and_then(|text| text.parse::<i32>().ok()?.try_into().ok());
    let after = |millis| Pushback::After(Duration::from_millis(millis));
    (said > 0).then(|| millis.map_or(Pushback::Never, after))
}

/// Whether another attempt would help after an answer with this head, where it does after `codes`.
///
/// Not where the server says that it wants none. That it says when to come back makes no code worth another attempt that
/// is not: of gRPC's own implementations those in C and Go read A6 so, the one in Java does not.
///
/// ```
/// use http::{HeaderMap, HeaderValue, StatusCode};
/// use tower_outbound::policy::{Cause, Verdict, grpc::{Codes, classify}};
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(classify(StatusCode::OK, &headers, Codes::PASSING), Verdict::Success);
/// headers.insert("grpc-status", HeaderValue::from_static("8"));
/// assert_eq!(classify(StatusCode::OK, &headers, Codes::PASSING), Verdict::Retry(Cause::Throttled));
/// ```
pub fn classify(status: StatusCode, headers: &HeaderMap, codes: Codes) -> Verdict {
    match Code::of(status, headers) {
        None | Some(Code::OK) => Verdict::Success,
        Some(code) if !codes.contains(code) || pushback(headers) == Some(Pushback::Never) => {
            Verdict::NotRetryable
        }
        Some(Code::RESOURCE_EXHAUSTED) => Verdict::Retry(Cause::Throttled),
        Some(_) => Verdict::Retry(Cause::of(status)),
    }
}

/// Whether an answer of HTTP 200 is the server's refusal for now, to everybody.
pub(super) fn is_throttled(headers: &HeaderMap) -> bool {
    Code::in_head(headers).is_some_and(|code| Codes::PASSING.contains(code))
}

/// How long the server of an answer of HTTP 200 wants no other attempt, where the call has failed with its head.
pub(super) fn asked(headers: &HeaderMap) -> Option<Duration> {
    match Code::in_head(headers).filter(|code| *code != Code::OK).and_then(|_| pushback(headers)) {
        Some(Pushback::After(asked)) => Some(asked),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;
    use crate::policy::head_of;

    fn head(lines: &[(&'static str, &[u8])]) -> HeaderMap {
        head_of(lines.iter().copied())
    }

    const fn after(millis: u64) -> Option<Pushback> {
        Some(Pushback::After(Duration::from_millis(millis)))
    }

    #[test]
    fn a_status_in_the_head_is_read_and_what_is_not_known_is_unknown() {
        for number in 0..=16 {
            let text = number.to_string();
            assert_eq!(Code::in_head(&head(&[("grpc-status", text.as_bytes())])), Some(Code(number)));
        }
        for text in ["17", "256", "99999999999999999999", "-1", "", "14.0", "UNAVAILABLE", "\u{b2}"] {
            let headers = head(&[("grpc-status", text.as_bytes())]);
            assert_eq!(Code::in_head(&headers), Some(Code::UNKNOWN), "{text}");
        }
        assert_eq!(Code::in_head(&HeaderMap::new()), None);
        assert_eq!(format!("{:?}", Codes::PASSING), "{RESOURCE_EXHAUSTED, UNAVAILABLE}");
    }

    /// `http-grpc-status-mapping` of the gRPC project.
    #[test]
    fn an_answer_that_is_no_grpc_servers_is_what_its_http_status_stands_for() {
        for (status, code) in [
            (200, None),
            (400, Some(Code::INTERNAL)),
            (401, Some(Code::UNAUTHENTICATED)),
            (403, Some(Code::PERMISSION_DENIED)),
            (404, Some(Code::UNIMPLEMENTED)),
            (429, Some(Code::UNAVAILABLE)),
            (500, Some(Code::UNKNOWN)),
            (502, Some(Code::UNAVAILABLE)),
            (503, Some(Code::UNAVAILABLE)),
            (504, Some(Code::UNAVAILABLE)),
            (505, Some(Code::UNKNOWN)),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(Code::of(status, &HeaderMap::new()), code, "{status}");
            assert_eq!(Code::of(status, &head(&[("grpc-status", b"10")])), Some(Code::ABORTED), "{status}");
        }
    }

    #[test]
    fn a_pushback_is_one_signed_number_of_32_bits() {
        let cases: [(&[u8], Option<Pushback>); 12] = [
            (b"0", after(0)),
            (b"1", after(1)),
            (b" 250\t", after(250)),
            (b"2147483647", after(2_147_483_647)),
            (b"2147483648", Some(Pushback::Never)),
            (b"-1", Some(Pushback::Never)),
            (b"-2147483648", Some(Pushback::Never)),
            (b"", Some(Pushback::Never)),
            (b"soon", Some(Pushback::Never)),
            (b"1.5", Some(Pushback::Never)),
            (b"10, 20", Some(Pushback::Never)),
            (b"\xb2", Some(Pushback::Never)),
        ];
        for (value, expected) in cases {
            assert_eq!(pushback(&head(&[("grpc-retry-pushback-ms", value)])), expected, "{value:?}");
        }
        let field = "grpc-retry-pushback-ms";
        assert_eq!(pushback(&head(&[(field, b"10"), (field, b"20")])), Some(Pushback::Never));
        assert_eq!(pushback(&head(&[(field, b"10"), (field, b"\xb2")])), Some(Pushback::Never));
        assert_eq!(pushback(&HeaderMap::new()), None);
    }

    #[test]
    fn an_answer_is_judged_by_its_status_or_by_what_its_http_status_stands_for() {
        const TRANSIENT: Verdict = Verdict::Retry(Cause::Transient);
        const THROTTLED: Verdict = Verdict::Retry(Cause::Throttled);
        type Head<'a> = &'a [(&'static str, &'static [u8])];
        let table: [(u16, Head<'_>, Verdict); 19] = [
            (200, &[], Verdict::Success),
            (200, &[("grpc-status", b"0")], Verdict::Success),
            (200, &[("grpc-status", b"0"), ("grpc-retry-pushback-ms", b"5")], Verdict::Success),
            (200, &[("grpc-retry-pushback-ms", b"-1")], Verdict::Success),
            (200, &[("grpc-status", b"14")], TRANSIENT),
            (200, &[("grpc-status", b"8")], THROTTLED),
            (200, &[("grpc-status", b"14"), ("grpc-retry-pushback-ms", b"5")], TRANSIENT),
            (200, &[("grpc-status", b"8"), ("grpc-retry-pushback-ms", b"0")], THROTTLED),
            (200, &[("grpc-status", b"14"), ("grpc-retry-pushback-ms", b"-1")], Verdict::NotRetryable),
            (200, &[("grpc-status", b"8"), ("grpc-retry-pushback-ms", b"x")], Verdict::NotRetryable),
            (200, &[("grpc-status", b"13"), ("grpc-retry-pushback-ms", b"5")], Verdict::NotRetryable),
            (200, &[("grpc-status", b"4")], Verdict::NotRetryable),
            (200, &[("grpc-status", b"x")], Verdict::NotRetryable),
            // The server's own word goes before a proxy's.
            (503, &[("grpc-status", b"7")], Verdict::NotRetryable),
            (403, &[("grpc-status", b"14")], TRANSIENT),
            (429, &[], THROTTLED),
            (503, &[], TRANSIENT),
            (500, &[], Verdict::NotRetryable),
            (404, &[], Verdict::NotRetryable),
        ];
        for (status, lines, expected) in table {
            let verdict = classify(StatusCode::from_u16(status).unwrap(), &head(lines), Codes::PASSING);
            assert_eq!(verdict, expected, "{status} {lines:?}");
        }
        let aborted = head(&[("grpc-status", b"10")]);
        let judged = |codes| classify(StatusCode::OK, &aborted, codes);
        assert_eq!(judged(Codes::PASSING), Verdict::NotRetryable);
        assert_eq!(judged(Codes::PASSING.with(Code::ABORTED)), TRANSIENT);
        assert_eq!(judged(Codes::PASSING.with(Code::ABORTED).with(Code::ABORTED)), TRANSIENT);
        assert_eq!(judged(Codes::PASSING.with(Code::ABORTED).without(Code::ABORTED)), Verdict::NotRetryable);
    }

    proptest! {
        /// Whatever it says: never after a success, never against its wish, and nothing that is not chosen.
        #[test]
        fn what_is_tried_again_was_chosen_and_not_forbidden(
            http in 100_u16..1_000, status in prop::option::of("[0-9]{1,3}"), chosen in any::<u32>(),
            said in prop::option::of("-?[0-9]{1,12}"),
        ) {
            let (codes, mut headers) = (Codes(chosen), HeaderMap::new());
            for (name, text) in [(&GRPC_STATUS, &status), (&GRPC_RETRY_PUSHBACK_MS, &said)] {
                headers.extend(text.as_ref().map(|text| (name.clone(), HeaderValue::from_str(text).unwrap())));
            }
            let http = StatusCode::from_u16(http).unwrap();
            let code = Code::of(http, &headers);
            let tried = matches!(classify(http, &headers, codes), Verdict::Retry(_));
            let may = code.is_some_and(|code| code != Code::OK && codes.contains(code));
            prop_assert_eq!(tried, may && pushback(&headers) != Some(Pushback::Never));
        }
    }
}
