//! Failures of the layers, by kind.

use std::num::NonZeroU32;

use tower::{Layer, ServiceExt};
use tower_outbound::{
    ErrorKind, Quota,
    auth::{AuthLayer, Origin},
    limit::{PermitCost, RateLimitLayer, TokenBucket},
    timeout::{BodyIdleTimeoutLayer, TimeoutLayer},
};

use super::{
    support::{Scripted::*, ScriptedService, Unready, broken, get, secs},
    *,
};

const URI: &str = "https://host/v1";

#[track_caller]
fn check(error: &Error, kind: ErrorKind, word: &str, message: &str) {
    assert_eq!((error.kind(), error.kind().as_str()), (kind, word), "{error:?}");
    assert_eq!((error.to_string(), kind.to_string()), (message.to_owned(), word.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn names_each_failure_of_a_layer() {
    let silent = || ScriptedService::new([NoResponse]);
    let attempt = TimeoutLayer::per_attempt(secs(2)).unwrap();
    let error = attempt.layer(silent()).oneshot(get(URI)).await.unwrap_err();
    check(&error, ErrorKind::AttemptTimeout, "attempt_timeout", "no response within 2s");
    let error = retry().layer(attempt.layer(silent())).oneshot(get(URI)).await.unwrap_err();
    check(&error, ErrorKind::AttemptTimeout, "attempt_timeout", "no response within 2s after 3 attempts");

    let total = TimeoutLayer::total(secs(3)).unwrap();
    let error = total.layer(silent()).oneshot(get(URI)).await.unwrap_err();
    check(&error, ErrorKind::Deadline, "deadline", "deadline of 3s exceeded");

    let bucket = TokenBucket::new(Quota::per_minute(2).unwrap().with_burst(1).unwrap());
    let limit = RateLimitLayer::new(bucket).with_max_wait(secs(1));
    limit.layer(ScriptedService::new([Status(200)])).oneshot(get(URI)).await.unwrap();
    let error = limit.layer(silent()).oneshot(get(URI)).await.unwrap_err();
    check(&error, ErrorKind::RateLimited, "rate_limited", "refused by the rate limiter");

    let mut costly = get(URI);
    costly.extensions_mut().insert(PermitCost(NonZeroU32::new(9).unwrap()));
    let error = limit.layer(silent()).oneshot(costly).await.unwrap_err();
    let message = "request costs more permits than the rate limiter can grant";
    check(&error, ErrorKind::TooCostly, "too_costly", message);

    let auth = AuthLayer::new(ApiKey::new("k3y").unwrap(), Origin::parse(URI).unwrap()).unwrap();
    let error = auth.layer(silent()).oneshot(get("/v1")).await.unwrap_err();
    check(&error, ErrorKind::Auth, "auth", "credential could not be attached");

    let error =
        preset("https://host/base").client_with_service(silent()).unwrap().get("/../up").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.kind().as_str()),
        (ErrorKind::InvalidRequest, "invalid_request"),
        "{error:?}"
    );

    let error = limit_free().layer(broken()).oneshot(get(URI)).await.unwrap_err();
    check(&error, ErrorKind::NotReady, "not_ready", "service did not become ready");

    let unknown = tower::service_fn(|_| async { Err::<http::Response<String>, _>(BoxError::from("hm")) });
    let error = retry().layer(unknown).oneshot(get(URI)).await.unwrap_err();
    check(&error, ErrorKind::Other, "other", "service failed after 3 attempts");
}

fn limit_free() -> RateLimitLayer<TokenBucket> {
    RateLimitLayer::new(TokenBucket::unlimited())
}

#[tokio::test(start_paused = true)]
async fn names_a_stalled_response_body() {
    let endless = || {
        let frames = futures_util::stream::pending::<Result<Frame<Bytes>, BoxError>>();
        http::Response::new(StreamBody::new(frames))
    };
    let silent = tower::service_fn(move |_| async move { Ok::<_, BoxError>(endless()) });
    let layer = BodyIdleTimeoutLayer::new(secs(5)).unwrap();
    let response = layer.layer(silent).oneshot(get(URI)).await.unwrap();
    let error = response.into_body().collect().await.unwrap_err();
    let error = Error::find_in(&*error).unwrap();
    check(error, ErrorKind::BodyTimeout, "body_timeout", "response body stalled for 5s");
}

/// The service is not ready because its connection failed. The error names that failure.
#[tokio::test(start_paused = true)]
async fn names_the_cause_of_a_service_that_is_not_ready() {
    let unready = Unready(|| std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
    let error = limit_free().layer(unready).oneshot(get(URI)).await.unwrap_err();
    check(&error, ErrorKind::ConnectRefused, "connect_refused", "connection refused");
}

#[tokio::test(start_paused = true)]
async fn names_a_timeout_of_tower_and_of_tokio_below_the_layers() {
    let silent = || ScriptedService::new([NoResponse]);
    let by_tower = tower::timeout::Timeout::new(silent(), secs(1));
    let by_tokio = tower::service_fn(move |request| tokio::time::timeout(secs(1), silent().oneshot(request)));
    let by_tokio = by_tokio.map_err(BoxError::from).map_result(|result| result?);
    for error in [
        limit_free().layer(by_tower).oneshot(get(URI)).await.unwrap_err(),
        limit_free().layer(by_tokio).oneshot(get(URI)).await.unwrap_err(),
    ] {
        check(&error, ErrorKind::AttemptTimeout, "attempt_timeout", "attempt timed out");
        assert!(error.is_service() && !error.is_timeout(), "{error:?}");
    }
}

/// The distance to a deadline is measured.
#[tokio::test(start_paused = true)]
async fn shows_a_measured_limit_in_milliseconds() {
    let mut request = get(URI);
    let deadline = tokio::time::Instant::now() + Duration::from_nanos(2_000_000_123);
    request.extensions_mut().insert(tower_outbound::call::Deadline(deadline));
    let total = TimeoutLayer::total(secs(3)).unwrap();
    let error = total.layer(ScriptedService::new([NoResponse])).oneshot(request).await.unwrap_err();
    check(&error, ErrorKind::Deadline, "deadline", "deadline of 2s exceeded");
}
