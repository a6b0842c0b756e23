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

proptest! {
    /// A gRPC call is never retried after a success, a code outside `codes` or a negative `grpc-retry-pushback-ms`.
    #[test]
    fn retries_grpc_call_only_for_listed_code_without_negative_pushback(
        http in 100_u16..1_000, status in prop::option::of("[0-9]{1,3}"), chosen in any::<u32>(),
        said in prop::option::of("-?[0-9]{1,12}"),
    ) {
        let codes: Vec<_> = (0..=16).filter(|number| chosen & 1 << number != 0).map(Code).collect();
        let mut headers = HeaderMap::new();
        for (name, text) in [(&GRPC_STATUS, &status), (&GRPC_RETRY_PUSHBACK_MS, &said)] {
            headers.extend(text.as_ref().map(|text| (name.clone(), HeaderValue::from_str(text).unwrap())));
        }
        let http = StatusCode::from_u16(http).unwrap();
        let code = Code::of(http, &headers);
        let tried = matches!(
                classify(http, &headers, &codes),
                RetryDecision::Transient | RetryDecision::Throttled
            );
        let may = code.is_some_and(|code| code != Code::OK && codes.contains(&code));
        prop_assert_eq!(tried, may && pushback(&headers) != Some(Pushback::Never));
    }
}
