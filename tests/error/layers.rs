//! Tests the kinds and messages of the errors that the layers create.

use tower_outbound::{
    auth::Origin,
    timeout::{AttemptTimeoutLayer, TotalTimeoutLayer},
};

use super::{
    support::{Scripted::*, ScriptedService, Unready},
    *,
};

const URI: &str = "https://host/v1";

#[track_caller]
fn assert_error(error: &Error, kind: ErrorKind, kind_text: &str, message: &str) {
    assert_eq!((error.kind(), error.kind().as_str()), (kind, kind_text), "{error:?}");
    assert_eq!((error.to_string(), kind.to_string()), (message.to_owned(), kind_text.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn each_error_of_a_layer_has_its_own_kind_and_message() {
    let unresponsive = || ScriptedService::new([NoResponse]);
    let attempt = AttemptTimeoutLayer::new(secs(2)).unwrap();
    let error = attempt.layer(unresponsive()).oneshot(get(URI)).await.unwrap_err();
    assert_error(&error, ErrorKind::AttemptTimeout, "attempt_timeout", "no response within 2s");
    assert!(error.report().is_none(), "no layer of this stack creates a report");
    let error = quick_retry().layer(attempt.layer(unresponsive())).oneshot(get(URI)).await.unwrap_err();
    assert_error(
        &error,
        ErrorKind::AttemptTimeout,
        "attempt_timeout",
        "no response within 2s after 3 attempts",
    );

    let total = TotalTimeoutLayer::new(secs(3)).unwrap();
    let error = total.layer(unresponsive()).oneshot(get(URI)).await.unwrap_err();
    assert_error(&error, ErrorKind::Deadline, "deadline", "total timeout of 3s exceeded");

    let bucket = LocalLimiter::token_bucket(Quota::per_minute(2).unwrap().with_burst(1).unwrap());
    let limit = RateLimitLayer::new(bucket).with_max_wait(secs(1));
    limit.layer(ScriptedService::new([Status(200)])).oneshot(get(URI)).await.unwrap();
    let error = limit.layer(unresponsive()).oneshot(get(URI)).await.unwrap_err();
    let message =
        "refused by the rate limiter: the wait would exceed the allowed maximum (required wait: 61s)";
    assert_error(&error, ErrorKind::RateLimited, "rate_limited", message);

    let mut costly = get(URI);
    costly.extensions_mut().insert(PermitCost(NonZeroU32::new(9).unwrap()));
    let error = limit.layer(unresponsive()).oneshot(costly).await.unwrap_err();
    let message = "refused by the rate limiter: the request costs 9 permits, but at most 1 can be granted at once: lower \
                   the cost, or raise the quota's burst (Quota::with_burst, in a file `burst`), a bucket's capacity or \
                   a sliding window's limit";
    assert_error(&error, ErrorKind::TooCostly, "too_costly", message);

    let auth = AuthLayer::new(ApiKey::new("k3y").unwrap(), Origin::parse(URI).unwrap()).unwrap();
    let error = auth.layer(unresponsive()).oneshot(get("/v1")).await.unwrap_err();
    let message = "credential could not be attached: the request's uri names no origin, so the layer cannot decide \
                   whether to send the credential";
    assert_error(&error, ErrorKind::Auth, "auth", message);

    let error = preset("https://host/base")
        .client_with_service(unresponsive())
        .unwrap()
        .get("/../up")
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.kind().as_str()),
        (ErrorKind::InvalidRequest, "invalid_request"),
        "{error:?}"
    );

    let error = unlimited().layer(broken()).oneshot(get(URI)).await.unwrap_err();
    assert_error(&error, ErrorKind::NotReady, "not_ready", "service did not become ready");

    let unknown =
        tower::service_fn(|_| async { Err::<http::Response<String>, _>(BoxError::from("unknown failure")) });
    let error = quick_retry().layer(unknown).oneshot(get(URI)).await.unwrap_err();
    assert_error(&error, ErrorKind::Other, "other", "service failed after 3 attempts");
}

fn unlimited() -> RateLimitLayer<LocalLimiter> {
    RateLimitLayer::new(LocalLimiter::without_quota())
}

/// A service that uses a single connection can return an error from `poll_ready`.
#[tokio::test(start_paused = true)]
async fn poll_ready_error_has_the_kind_of_its_cause() {
    let unready = Unready(|| std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
    let error = unlimited().layer(unready).oneshot(get(URI)).await.unwrap_err();
    assert_error(&error, ErrorKind::ConnectRefused, "connect_refused", "connection refused");
}

#[tokio::test(start_paused = true)]
async fn timeout_errors_of_tower_and_tokio_have_the_kind_attempt_timeout() {
    let unresponsive = || ScriptedService::new([NoResponse]);
    let by_tower = tower::timeout::Timeout::new(unresponsive(), secs(1));
    let by_tokio =
        tower::service_fn(move |request| tokio::time::timeout(secs(1), unresponsive().oneshot(request)));
    let by_tokio = by_tokio.map_err(BoxError::from).map_result(|result| result?);
    for error in [
        unlimited().layer(by_tower).oneshot(get(URI)).await.unwrap_err(),
        unlimited().layer(by_tokio).oneshot(get(URI)).await.unwrap_err(),
    ] {
        assert_error(&error, ErrorKind::AttemptTimeout, "attempt_timeout", "attempt timed out");
        assert!(error.is_service() && !error.is_timeout(), "{error:?}");
    }
}
