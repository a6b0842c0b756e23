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
fn reads_valid_codes_and_maps_other_values_to_unknown() {
    for number in 0..=16 {
        let text = number.to_string();
        assert_eq!(Code::in_head(&head(&[("grpc-status", text.as_bytes())])), Some(Code(number)));
    }
    for text in ["17", "256", "99999999999999999999", "-1", "", "14.0", "UNAVAILABLE", "\u{b2}"] {
        let headers = head(&[("grpc-status", text.as_bytes())]);
        assert_eq!(Code::in_head(&headers), Some(Code::UNKNOWN), "{text}");
    }
    assert_eq!(Code::in_head(&HeaderMap::new()), None);
    assert_eq!(format!("{TEMPORARY:?}"), "[UNAVAILABLE, RESOURCE_EXHAUSTED]");
}

/// The expected codes come from the document `http-grpc-status-mapping` of the gRPC project.
#[test]
fn maps_http_status_to_grpc_code_if_grpc_status_is_missing() {
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
fn reads_grpc_retry_pushback_ms_as_one_signed_32_bit_number() {
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
fn classifies_grpc_response_by_grpc_status_or_http_status() {
    const TRANSIENT: RetryDecision = RetryDecision::Transient;
    const THROTTLED: RetryDecision = RetryDecision::Throttled;
    type Head<'a> = &'a [(&'static str, &'static [u8])];
    let table: [(u16, Head<'_>, RetryDecision); 19] = [
        (200, &[], RetryDecision::Success),
        (200, &[("grpc-status", b"0")], RetryDecision::Success),
        (200, &[("grpc-status", b"0"), ("grpc-retry-pushback-ms", b"5")], RetryDecision::Success),
        (200, &[("grpc-retry-pushback-ms", b"-1")], RetryDecision::Success),
        (200, &[("grpc-status", b"14")], TRANSIENT),
        (200, &[("grpc-status", b"8")], THROTTLED),
        (200, &[("grpc-status", b"14"), ("grpc-retry-pushback-ms", b"5")], TRANSIENT),
        (200, &[("grpc-status", b"8"), ("grpc-retry-pushback-ms", b"0")], THROTTLED),
        (200, &[("grpc-status", b"14"), ("grpc-retry-pushback-ms", b"-1")], RetryDecision::NotRetryable),
        (200, &[("grpc-status", b"8"), ("grpc-retry-pushback-ms", b"x")], RetryDecision::NotRetryable),
        (200, &[("grpc-status", b"13"), ("grpc-retry-pushback-ms", b"5")], RetryDecision::NotRetryable),
        (200, &[("grpc-status", b"4")], RetryDecision::NotRetryable),
        (200, &[("grpc-status", b"x")], RetryDecision::NotRetryable),
        // The server's own gRPC status overrides the HTTP status of a proxy.
        (503, &[("grpc-status", b"7")], RetryDecision::NotRetryable),
        (403, &[("grpc-status", b"14")], TRANSIENT),
        (429, &[], THROTTLED),
        (503, &[], TRANSIENT),
        (500, &[], RetryDecision::NotRetryable),
        (404, &[], RetryDecision::NotRetryable),
    ];
    for (status, lines, expected) in table {
        let decision = classify(StatusCode::from_u16(status).unwrap(), &head(lines), &TEMPORARY);
        assert_eq!(decision, expected, "{status} {lines:?}");
    }
    let aborted = head(&[("grpc-status", b"10")]);
    assert_eq!(classify(StatusCode::OK, &aborted, &TEMPORARY), RetryDecision::NotRetryable);
    assert_eq!(classify(StatusCode::OK, &aborted, &[Code::ABORTED]), TRANSIENT);
}

/// The texts come from protobuf's Python library.
#[test]
fn reads_retry_info_from_the_details_of_a_status() {
    const THREE_SECONDS: &str =
        "CAgSBXF1b3RhGjAKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SBAoCCAM=";
    const AFTER_QUOTA_FAILURE: &str = "CAgSDnF1b3RhIGV4Y2VlZGVkGlEKK3R5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5R\
        dW90YUZhaWx1cmUSIgogCglwcm9qZWN0OjESE3JlcXVlc3RzIHBlciBtaW51dGUaNgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUu\
        cnBjLlJldHJ5SW5mbxIKCggIARCAyrXuAQ==";
    const TWO_AND_SEVEN_SECONDS: &str = "CAgaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIAhow\
        Cih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEgQKAggH";
    const ZERO: &str = "CAgaLgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxICCgA=";
    const TWO_TO_THE_62: &str =
        "CAgaOAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIMCgoIgICAgICAgIBA";
    const NEGATIVE: &str =
        "CAgaOQoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxINCgsI////////////AQ==";
    const NEGATIVE_NANOS: &str =
        "CAgaOQoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxINCgsQ+///////////AQ==";
    const WITHOUT_DELAY: &str = "CAgaKgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbw==";
    const ERROR_INFO: &str = "CAgaLwoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLkVycm9ySW5mbxIDCgFY";
    const WITHOUT_DETAILS: &str = "CAgSBXF1b3Rh";
    let requested = |code: &str, details: &[&str]| {
        let details = details.iter().map(|text| ("grpc-status-details-bin", text.as_bytes()));
        requested_delay(&head_of(details.chain([("grpc-status", code.as_bytes())])))
    };
    let millis = |millis| Some(Duration::from_millis(millis));
    for (details, expected) in [
        (THREE_SECONDS, millis(3_000)),
        (AFTER_QUOTA_FAILURE, millis(1_500)),
        (TWO_AND_SEVEN_SECONDS, millis(7_000)),
        (ZERO, millis(0)),
        (TWO_TO_THE_62, Some(MAX_REQUESTED_DELAY)),
        (NEGATIVE, None),
        (NEGATIVE_NANOS, None),
        (WITHOUT_DELAY, None),
        (ERROR_INFO, None),
        (WITHOUT_DETAILS, None),
        ("", None),
    ] {
        assert_eq!(requested("8", &[details]), expected, "{details}");
        // gRPC's libraries send no padding.
        assert_eq!(requested("8", &[details.trim_end_matches('=')]), expected, "{details} without padding");
        // The code in the details contradicts `grpc-status`.
        assert_eq!(requested("14", &[details]), None, "{details}");
        assert_eq!(requested("0", &[details]), None, "{details}");
    }
    assert_eq!(requested("8", &[THREE_SECONDS, THREE_SECONDS]), None, "the header is repeated");
    for cut in 1..THREE_SECONDS.len() - 1 {
        assert_eq!(requested("8", &[&THREE_SECONDS[..cut]]), None, "the first {cut} characters");
    }
    for (pushback, expected) in [("2000", 3_000), ("4000", 4_000), ("-1", 3_000)] {
        let headers = head(&[
            ("grpc-status", b"8"),
            ("grpc-status-details-bin", THREE_SECONDS.as_bytes()),
            ("grpc-retry-pushback-ms", pushback.as_bytes()),
        ]);
        assert_eq!(requested_delay(&headers), millis(expected), "{pushback}");
    }
}

/// Encodes a field with a number, and a field with bytes.
fn number_field(field: u64, number: u64) -> Vec<u8> {
    [varint(field << 3), varint(number)].concat()
}

fn bytes_field(field: u64, bytes: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn base64(bytes: &[u8], padded: bool) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<_> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    let index = |sextet: &[u8]| (0..6).fold(0, |index, bit| index << 1 | sextet.get(bit).unwrap_or(&0));
    let mut text: String =
        bits.chunks(6).map(|sextet| char::from(ALPHABET[usize::from(index(sextet))])).collect();
    while padded && text.len() % 4 > 0 {
        text.push('=');
    }
    text
}

proptest! {
    #[test]
    fn reads_every_retry_info_among_other_fields(
        seconds in any::<u64>(), nanos in prop_oneof![0..1_000_000_000_u64, any::<u64>()],
        unknown in prop::collection::vec((16..1_000_u64, any::<u64>(), prop::collection::vec(any::<u8>(), 0..20)), 0..4),
        fixed in any::<u64>(), padded in any::<bool>(),
    ) {
        let unknown: Vec<u8> = unknown
            .iter()
            .flat_map(|(field, number, bytes)| [number_field(*field, *number), bytes_field(*field, bytes)].concat())
            .collect();
        let fixed = [varint(17 << 3 | 1), fixed.to_le_bytes().to_vec(), varint(18 << 3 | 5), vec![9; 4]].concat();
        let delay = [number_field(1, seconds), fixed.clone(), number_field(2, nanos)].concat();
        let retry_info = [unknown.clone(), bytes_field(1, &delay)].concat();
        let any = [bytes_field(1, b"type.googleapis.com/google.rpc.RetryInfo"), bytes_field(2, &retry_info)].concat();
        let status = [fixed, number_field(1, 8), bytes_field(3, &any), unknown].concat();
        let is_valid = seconds <= i64::MAX as u64 && nanos < 1_000_000_000;
        let expected = is_valid.then(|| Duration::new(seconds, nanos as u32));
        let text = base64(&status, padded);
        prop_assert_eq!(retry_delay(&text, 8), expected);
        prop_assert_eq!(retry_delay(&text, 14), None);
        let headers = head(&[("grpc-status", b"8"), ("grpc-status-details-bin", text.as_bytes())]);
        prop_assert_eq!(requested_delay(&headers), expected.map(|delay| delay.min(MAX_REQUESTED_DELAY)));
    }

    #[test]
    fn any_details_cause_no_panic(
        bytes in prop::collection::vec(prop_oneof![Just(8_u8), Just(10), Just(18), Just(26), 0..5_u8, any::<u8>()], 0..60),
        text in "[ -~]{0,40}",
    ) {
        for text in [base64(&bytes, false), text] {
            let headers = head(&[("grpc-status", b"8"), ("grpc-status-details-bin", text.as_bytes())]);
            prop_assert!(requested_delay(&headers).is_none_or(|delay| delay <= MAX_REQUESTED_DELAY));
        }
    }
}
