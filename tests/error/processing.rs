//! Tests which calls prove that the server processed no attempt. The cases are those of the table in the documentation
//! of `Error::may_have_been_processed`. The tests of `transport` have the other failures of the network.

use http::Method;
use tower_outbound::{
    ErrorKind::{self, *},
    call::{Deadline, StopReason},
    error::DeliveryError,
    test_util::{ScriptedResponse, ScriptedService},
};

use super::{support::millis, *};

const URL: &str = "https://api.example.com";

fn reset() -> ScriptedResponse {
    ScriptedResponse::io_error(std::io::ErrorKind::ConnectionReset)
}

fn error(make: fn() -> BoxError) -> ScriptedResponse {
    ScriptedResponse::error(make)
}

/// Sends a request without a body through a client. Returns its error.
async fn failed(builder: StackBuilder, method: Method, script: Vec<ScriptedResponse>) -> Error {
    let client = builder.client_with_service(ScriptedService::new(script)).unwrap();
    client.request(method, "/v1").await.unwrap_err()
}

#[test]
fn documentation_has_one_row_for_each_kind() {
    let (_, kinds) = include_str!("../../src/error/kind.rs").split_once("pub enum ErrorKind {").unwrap();
    let kinds = kinds.split_once("\n}").unwrap().0.lines().map(str::trim);
    let kinds: Vec<_> = kinds.filter_map(|line| line.strip_suffix(',')).collect();
    assert!(kinds.contains(&"Dns") && kinds.contains(&"Other"), "{kinds:?}");
    let table = include_str!("../../src/error/call.rs").split_once("| how an attempt ended |").unwrap().1;
    let rows = table.lines().skip(2).map_while(|line| line.trim().strip_prefix("/// | ")?.split_once(" | "));
    let listed: Vec<_> = rows.flat_map(|(ended, _)| ended.split('`').skip(1).step_by(2)).collect();
    for kind in kinds {
        assert_eq!(listed.iter().filter(|listed| **listed == kind).count(), 1, "{kind}: {listed:?}");
    }
}

#[cfg(feature = "proxy")]
#[tokio::test]
async fn error_of_an_unreachable_proxy_proves_that_nothing_was_sent() {
    let (_socket, address) = refusing_address();
    let proxy = tower_outbound::transport::Proxy::new(&format!("http://{address}")).unwrap();
    let transport = tower_outbound::transport::TransportConfig::new().with_proxy(proxy);
    let error = preset(URL).client_with_transport(transport).unwrap().post("/").await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_processed()), (Proxy, false), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn error_may_have_been_processed_unless_each_attempt_was_not() {
    let refused = ScriptedResponse::refused;
    let not_sent = || error(|| DeliveryError::not_sent("no connection").into());
    let open = || error(|| DeliveryError::circuit_open("too many failures").into());
    let maybe = || error(|| DeliveryError::maybe_processed("lost").into());
    let cases: Vec<(Vec<ScriptedResponse>, ErrorKind, bool)> = vec![
        (vec![refused()], ConnectRefused, false),
        (vec![not_sent()], Other, false),
        (vec![open()], CircuitOpen, false),
        (vec![429.into(), refused()], ConnectRefused, false),
        (vec![refused(), 429.into(), open()], CircuitOpen, false),
        (vec![reset()], Reset, true),
        (vec![maybe()], Other, true),
        (vec![ScriptedResponse::never()], AttemptTimeout, true),
        (vec![503.into(), refused()], ConnectRefused, true),
        (vec![reset(), refused(), open()], CircuitOpen, true),
        (vec![refused(), ScriptedResponse::never(), refused()], ConnectRefused, true),
    ];
    for (number, (script, kind, expected)) in cases.into_iter().enumerate() {
        let error = failed(preset(URL), Method::GET, script).await;
        assert_eq!((error.kind(), error.may_have_been_processed()), (kind, expected), "{number}: {error:?}");
        assert_eq!(error.report().unwrap().may_have_been_processed(), expected, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn error_of_a_layer_shows_whether_an_earlier_attempt_was_processed() {
    let spent = || {
        let limiter = LocalLimiter::sliding_window(Quota::per_minute(1).unwrap());
        preset(URL).with_limiter(limiter).with_total_timeout(secs(9))
    };
    let error = failed(spent(), Method::GET, vec![503.into(), 200.into()]).await;
    assert!(error.is_rate_limited() && error.may_have_been_processed(), "{error:?}");
    let error = failed(spent(), Method::GET, vec![ScriptedResponse::refused()]).await;
    assert_eq!((error.kind(), error.may_have_been_processed()), (ConnectRefused, false));

    let key = RefreshingKey::new(|| async { Err::<FreshKey, _>(BoxError::from("closed")) });
    let error = failed(preset(URL).with_keys(key), Method::POST, vec![200.into()]).await;
    assert_eq!((error.kind(), error.may_have_been_processed()), (Auth, false));

    let client = preset(URL).client_with_service(ScriptedService::new([200])).unwrap();
    let error = client.post("//").await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_processed()), (InvalidRequest, false));

    let client = preset(URL).with_quota(Quota::per_minute(1).unwrap());
    let client = client.client_with_service(ScriptedService::new([200])).unwrap();
    let error = client.post("/").extension(PermitCost(2.try_into().unwrap())).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_processed()), (TooCostly, false));

    let limit = tower_outbound::limit::RateLimitLayer::new(LocalLimiter::without_quota());
    let error = quick_retry().layer(limit.layer(broken())).oneshot(get(URL)).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_processed()), (NotReady, false));
}

#[tokio::test(start_paused = true)]
async fn deadline_proves_nothing_unless_it_passed_before_the_attempt() {
    let never = || vec![ScriptedResponse::never()];
    let error = failed(preset(URL).with_total_timeout(secs(2)), Method::POST, never()).await;
    assert_eq!((error.kind(), error.may_have_been_processed()), (ErrorKind::Deadline, true));

    let client = preset(URL).client_with_service(ScriptedService::new(never())).unwrap();
    let passed = Deadline::after(Duration::ZERO);
    tokio::time::advance(millis(1)).await;
    let error = client.post("/").extension(passed).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_processed()), (ErrorKind::Deadline, false));

    // A timeout of another crate expires during the backoff.
    let patient = RetryLayer::new().with_custom_backoff(|| std::iter::repeat(secs(30)));
    for (script, expected) in [(ScriptedResponse::refused(), false), (503.into(), true)] {
        let total = tower_outbound::timeout::TotalTimeoutLayer::new(secs(60)).unwrap();
        let shorter = tower::layer::layer_fn(|inner| tower::timeout::Timeout::new(inner, secs(2)));
        let service = ServiceBuilder::new()
            .layer(RequestIdLayer::new())
            .layer(shorter)
            .layer(total)
            .layer(patient.clone())
            .service(ScriptedService::new([script]));
        let error = service.oneshot(get(URL)).await.unwrap_err();
        assert_eq!(error.report().unwrap().attempt_count(), 1);
        assert_eq!(error.may_have_been_processed(), expected, "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn response_error_may_have_been_processed_unless_each_response_rejected_the_request() {
    let cases: [(&[u16], bool); 6] = [
        (&[500], true),
        (&[400], true),
        (&[401], true),
        (&[429], false),
        (&[429, 529, 429], false),
        (&[503, 429, 429], true),
    ];
    for (script, expected) in cases {
        let client = preset(URL).client_with_service(ScriptedService::new(script.iter().copied())).unwrap();
        let response = client.put("/v1").await.unwrap();
        assert_eq!(response.report().unwrap().may_have_been_processed(), expected, "{script:?}");
        let error = response.error_for_status().await.unwrap_err();
        assert_eq!(error.may_have_been_processed(), expected, "{script:?}");
    }
    let error = failed(preset(URL), Method::PUT, vec![ScriptedResponse::refused()]).await;
    assert!(!tower_outbound::client::ResponseError::from(error).may_have_been_processed());
}

#[tokio::test(start_paused = true)]
async fn running_call_may_have_been_processed() {
    let service = ScriptedService::from_fn(|seen| {
        let call = seen.head.extensions.get::<tower_outbound::call::CallContext>().unwrap();
        assert!(call.report().may_have_been_processed());
        assert_eq!(call.report().stop_reason(), None::<StopReason>);
        ScriptedResponse::refused()
    });
    let error = quick_retry().layer(service).oneshot(get(URL)).await.unwrap_err();
    assert!(!error.may_have_been_processed());
}
