use std::time::{Duration, SystemTime};

use http::HeaderName;

use super::*;
use crate::policy::{Remaining, Unit, feedback::Reading, head_of, header_values::MAX_REQUESTED_DELAY};

fn quota(name: &'static str) -> QuotaHeaders {
    QuotaHeaders::new(HeaderName::from_static(name))
}

#[test]
fn headers_of_a_dialect_take_precedence_over_those_of_a_known_service() {
    let reset = HeaderName::from_static("x-ratelimit-reset");
    let points = quota("x-ratelimit-remaining").with_reset(reset).with_unit(Unit::Points);
    let dialect = Dialect::new().with_quota_headers(points).unwrap();
    let headers = head_of([("x-ratelimit-remaining", b"7".as_slice()), ("x-ratelimit-reset", b"9")]);
    let units = |dialect: &Dialect| {
        let reading = Reading::new(dialect, StatusCode::OK, &headers, None, || SystemTime::UNIX_EPOCH);
        reading.remaining().iter().map(|quota| (quota.unit(), quota.left())).collect::<Vec<_>>()
    };
    assert_eq!(units(&dialect), [(Unit::Points, 7)]);
    assert_eq!(units(&Dialect::new()), [(Unit::Requests, 7)]);
}

#[test]
fn quota_with_a_documented_window_needs_no_reset() {
    let resource = HeaderName::from_static("x-pool");
    let quota = quota("x-left").with_window(Duration::from_secs(60)).with_resource(resource);
    let dialect = Dialect::new().with_quota_headers(quota).unwrap();
    let read = |pool: &str| {
        let headers = head_of([("x-left", b"7, 8".as_slice()), ("x-pool", pool.as_bytes())]);
        let reading = Reading::new(&dialect, StatusCode::OK, &headers, None, || SystemTime::UNIX_EPOCH);
        let quotas = reading.remaining().iter();
        quotas.map(|quota| (quota.left(), quota.reset_after().as_secs(), quota.policy())).collect::<Vec<_>>()
    };
    let (one, other) = (read("a"), read("b"));
    assert_eq!(one.iter().map(|quota| (quota.0, quota.1)).collect::<Vec<_>>(), [(7, 60), (8, 60)]);
    assert!(one[0].2 != one[1].2 && one[0].2 != other[0].2, "{one:?} {other:?}");
}

#[test]
fn used_permits_are_read_with_the_limit_in_the_same_or_another_header() {
    let header = HeaderName::from_static;
    let [used, second] = [QuotaHeaders::of_used(header("x-used")), QuotaHeaders::of_used(header("x-both"))];
    let used = used.with_limit(header("x-most")).with_window_header(header("x-window"));
    let dialect = Dialect::new().with_quota_headers(used).unwrap();
    let dialect = dialect.with_quota_headers(second.with_window(Duration::from_secs(20))).unwrap();
    let read = |fields: &[(&'static str, &[u8])]| {
        let headers = head_of(fields.iter().copied());
        let reading = Reading::new(&dialect, StatusCode::OK, &headers, None, || SystemTime::UNIX_EPOCH);
        let quotas = reading.remaining().iter();
        quotas.map(|quota| (quota.left(), quota.limit(), quota.reset_after().as_millis())).collect::<Vec<_>>()
    };
    let with_window = |window| read(&[("x-used", b"30"), ("x-most", b"40"), ("x-window", window)]);
    assert_eq!(with_window(b"60".as_slice()), [(10, Some(40), 60_000)]);
    assert_eq!(with_window(b"2m"), [(10, Some(40), 120_000)]);
    assert_eq!(with_window(b"0"), [], "no window");
    assert_eq!(read(&[("x-both", b"30/40")]), [(10, Some(40), 500)], "the refill of one permit");
    assert_eq!(read(&[("x-both", b"0/0")]), [], "no limit");
    assert_eq!(read(&[("x-used", b"30"), ("x-window", b"60")]), [], "no limit");
    assert_eq!(with_window(b"0, 60"), [], "the first quota has no window");
    let list = [("x-used", b"35, 999.5".as_slice()), ("x-most", b"40, 1000"), ("x-window", b"60, 3600")];
    assert_eq!(read(&list), [(0, Some(1_000), 3_600_000), (5, Some(40), 60_000)]);
    let error = Dialect::new().with_quota_headers(QuotaHeaders::of_used(header("x-used"))).unwrap_err();
    let text = "invalid quota header `x-used`: expected a header with the limit, or a documented window and no other header";
    assert_eq!(error.to_string(), text);
    let both = || QuotaHeaders::of_used(header("x-both"));
    let minute = Duration::from_secs(60);
    for quota in [
        both().with_window(minute).with_reset(header("x-reset")),
        both().with_window(minute).with_resource(header("x-pool")),
        both().with_window(minute).with_window_header(header("x-window")),
        both().with_window(Duration::ZERO),
        quota("x-left").with_reset(header("x-reset")).with_window(Duration::ZERO),
    ] {
        assert!(Dialect::new().with_quota_headers(quota.clone()).is_err(), "{quota:?}");
    }
}

/// Prisjakt sends a reset of `600000`.
#[test]
fn numbers_of_a_dialect_in_milliseconds_have_no_other_unit() {
    let header = HeaderName::from_static;
    let [reset, window] = [header("x-reset"), header("x-window")];
    let first = quota("x-left").with_reset(reset).with_window_header(window).with_millis();
    let seconds = quota("x-other").with_reset(header("x-other-reset"));
    let dialect = Dialect::new().with_quota_headers(first).unwrap().with_quota_headers(seconds).unwrap();
    for (value, millis) in [("2500", 2_500), ("2s", 2_000), ("1767229203000", 3_000)] {
        let fields = [("x-left", "7"), ("x-reset", value), ("x-window", "60000")];
        let others = [("x-other", "8"), ("x-other-reset", "9")];
        let date = [("date", "Thu, 01 Jan 2026 01:00:00 GMT")];
        let all = fields.into_iter().chain(others).chain(date);
        let headers = head_of(all.map(|(name, value)| (name, value.as_bytes())));
        let reading = Reading::new(&dialect, StatusCode::OK, &headers, None, || SystemTime::UNIX_EPOCH);
        let read = |quota: &Remaining| (quota.left(), quota.reset_after().as_millis(), quota.window());
        let quotas: Vec<_> = reading.remaining().iter().map(read).collect();
        assert_eq!(quotas, [(7, millis, Some(Duration::from_secs(60))), (8, 9_000, None)], "{value}");
    }
}

#[test]
fn window_of_a_dialect_is_capped_at_30_years() {
    let quota = QuotaHeaders::of_used(HeaderName::from_static("x-both")).with_window(Duration::MAX);
    let dialect = Dialect::new().with_quota_headers(quota).unwrap();
    let headers = head_of([("x-both", b"0/1".as_slice())]);
    let reading = Reading::new(&dialect, StatusCode::OK, &headers, None, || SystemTime::UNIX_EPOCH);
    let [quota] = reading.remaining() else { panic!("{:?}", reading.remaining()) };
    assert_eq!(quota.reset_after(), MAX_REQUESTED_DELAY);
}

/// The headers may report eight quotas, which is the maximum, or a quota named `signal`.
#[test]
fn quota_of_a_signal_applies_beside_those_of_the_headers() {
    let signal = ServerSignal::accepted().with_remaining(50, Duration::from_secs(60));
    let many = (0..9).map(|name| format!("\"{name}\";r=1;t=1")).collect::<Vec<_>>().join(", ");
    for (header, count) in [(many.as_str(), 8), ("signal;r=10;t=5", 2)] {
        let headers = head_of([("ratelimit", header.as_bytes())]);
        let reading =
            Reading::new(&STANDARD, StatusCode::OK, &headers, Some(signal), || SystemTime::UNIX_EPOCH);
        let quotas = reading.remaining();
        let names: std::collections::HashSet<_> = quotas.iter().map(|quota| quota.policy()).collect();
        assert_eq!((quotas.len(), names.len(), quotas[count - 1].left()), (count, count, 50), "{header}");
    }
}

/// The delay of an invalid value is that of the next header.
#[test]
fn delay_headers_of_a_dialect_take_precedence_over_other_headers() {
    let header = HeaderName::from_static;
    let dialect = Dialect::new().with_delay_header_in_millis(header("x-wait-ms")).unwrap();
    let dialect = dialect.with_delay_header(header("x-wait")).unwrap();
    let dialect = dialect.with_delay_header_in_millis(header("retry-after")).unwrap();
    type Case<'a> = (&'a [(&'a str, &'a str)], Option<u64>);
    let cases: [Case<'_>; 9] = [
        (&[("x-wait", "2.5")], Some(2_500)),
        (&[("x-wait", "1m")], Some(60_000)),
        (&[("x-wait", "1767229203")], Some(3_000)),
        (&[("x-wait", "9"), ("x-wait-ms", "700")], Some(700)),
        (&[("x-wait", "9"), ("x-wait-ms", "-1")], Some(9_000)),
        (&[("x-wait", "9"), ("retry-after-ms", "100")], Some(9_000)),
        (&[("x-wait", "soon"), ("retry-after-ms", "100")], Some(100)),
        (&[("retry-after", "1500")], Some(1_500)),
        (&[("x-wait-s", "9")], None),
    ];
    for (fields, expected) in cases {
        let date = ("date", "Thu, 01 Jan 2026 01:00:00 GMT");
        let fields = fields.iter().copied().chain([date]);
        let headers = head_of(fields.clone().map(|(name, value)| (name, value.as_bytes())));
        let pause = |status| {
            let reading = Reading::new(&dialect, status, &headers, None, || SystemTime::UNIX_EPOCH);
            (reading.pause(), reading.requested_delay())
        };
        let delay = expected.map(Duration::from_millis);
        let fields: Vec<_> = fields.collect();
        assert_eq!(pause(StatusCode::TOO_MANY_REQUESTS), (delay, delay), "{fields:?}");
        // A 403 that states a delay is a throttle. Any other error delays only its own call.
        assert_eq!(pause(StatusCode::FORBIDDEN), (delay, delay), "{fields:?}");
        assert_eq!(pause(StatusCode::INTERNAL_SERVER_ERROR), (None, delay), "{fields:?}");
    }
    let error = dialect.clone().with_delay_header(header("x-wait")).unwrap_err();
    assert_eq!((error.field(), error.value()), ("delay header", "x-wait"));
    let error = dialect.with_quota_headers(quota("x-wait").with_window(Duration::from_secs(1))).unwrap_err();
    assert_eq!((error.field(), error.value()), ("quota header", "x-wait"));
}

#[test]
fn header_of_a_permanent_throttle_has_its_value_and_a_status_of_at_least_400() {
    let code = HeaderName::from_static("x-code");
    let any = HeaderName::from_static("x-spent");
    let value = HeaderValue::from_static;
    let dialect = Dialect::new().with_permanent_header(code.clone(), value("40112")).unwrap();
    let dialect = dialect.with_permanent_header(code.clone(), value("40114")).unwrap();
    let dialect = dialect.with_permanent_header(any.clone(), None).unwrap();
    let permanent = ServerSignal::throttled().with_permanent().with_not_processed();
    let cases: [(&str, &[&str], bool); 8] = [
        ("x-code", &["40112"], true),
        ("x-code", &["40114"], true),
        ("x-code", &["1", "40114"], true),
        ("x-code", &["401140"], false),
        ("x-code", &[], false),
        ("x-spent", &[""], true),
        ("x-spent", &["1"], true),
        ("x-spend", &["1"], false),
    ];
    for (name, values, is_permanent) in cases {
        let headers = head_of(values.iter().map(|value| (name, value.as_bytes())));
        for status in [200, 399, 400, 401, 403, 429, 500] {
            let status = StatusCode::from_u16(status).unwrap();
            let reading = Reading::new(&dialect, status, &headers, None, || SystemTime::UNIX_EPOCH);
            let expected = is_permanent && status.as_u16() >= 400;
            assert_eq!(dialect.signal(status, &headers), expected.then_some(permanent), "{name} {values:?}");
            assert_eq!(reading.is_permanent(), expected, "{name} {values:?} {status}");
        }
    }
    // The function of the dialect takes precedence, whatever the order of the calls.
    let accepting = dialect.clone().with_signal(|status, _| (status == 429).then(ServerSignal::accepted));
    let headers = head_of([("x-spent", b"1".as_slice())]);
    assert_eq!(accepting.signal(StatusCode::TOO_MANY_REQUESTS, &headers), Some(ServerSignal::accepted()));
    assert_eq!(accepting.signal(StatusCode::FORBIDDEN, &headers), Some(permanent));
    for (name, value) in
        [(&code, Some(value("40114"))), (&code, None), (&any, None), (&any, Some(value("1")))]
    {
        let error = dialect.clone().with_permanent_header(name.clone(), value).unwrap_err();
        assert_eq!((error.field(), error.value()), ("permanent header", name.as_str()));
    }
}

#[test]
fn throttle_status_is_at_least_400() {
    for (status, is_valid) in [(200, false), (399, false), (400, true), (999, true)] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(Dialect::new().with_throttle_status(status).is_ok(), is_valid, "{status}");
    }
    let error = Dialect::new().with_throttle_status(StatusCode::OK).unwrap_err();
    assert_eq!(error.to_string(), "invalid throttle status `200`: expected at least 400");
}

#[test]
fn invalid_quota_headers_are_rejected() {
    let minute = Duration::from_secs(60);
    let error = Dialect::new().with_quota_headers(quota("x-left")).unwrap_err();
    assert_eq!((error.field(), error.value()), ("quota header", "x-left"));
    let twice = quota("x-left").with_limit(HeaderName::from_static("x-left")).with_window(minute);
    assert_eq!(Dialect::new().with_quota_headers(twice).unwrap_err().value(), "x-left");
    let one = Dialect::new().with_quota_headers(quota("x-left").with_window(minute)).unwrap();
    assert_eq!(one.with_quota_headers(quota("x-left").with_window(minute)).unwrap_err().value(), "x-left");
    let error = Dialect::new().with_quota_headers(QuotaHeaders::default()).unwrap_err();
    assert_eq!(error.to_string(), "invalid quota `none`: expected either `remaining` or `used`");
}
