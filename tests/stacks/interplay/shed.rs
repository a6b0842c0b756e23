//! tower's `LoadShed`.

use std::time::Duration;

use futures_util::future::join_all;
use tower::{
    ServiceBuilder, ServiceExt,
    limit::ConcurrencyLimitLayer,
    load_shed::{LoadShedLayer, error::Overloaded},
};
use tower_outbound::{Error, Report, call::Outcome, limit::RateLimitLayer, retry::RetryLayer};

use super::{
    URI, bucket, methods, outcomes,
    support::{Scripted::*, ScriptedService, cause, get, millis, request},
};

/// What was shed was not sent: even a POST is tried again.
#[tokio::test(start_paused = true)]
async fn below_what_is_shed_comes_again_whatever_its_method() {
    let probe = ScriptedService::new([Delayed(30, 200), Status(200)]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(probe.clone());
    let calls = [service.clone().oneshot(request("POST", URI)), service.oneshot(request("POST", URI))];
    let answers = join_all(calls).await;
    let shed = Report::from_response(answers[1].as_ref().unwrap()).unwrap();
    assert_eq!(outcomes(shed)[0], Outcome::NotSent);
    assert_eq!(answers[0].as_ref().unwrap().status(), 200);
    assert_eq!(methods(&probe), ["POST", "POST"], "one for each call");
}

#[tokio::test(start_paused = true)]
async fn below_what_is_shed_to_the_end_says_so() {
    let probe = ScriptedService::new([NoResponse]);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(probe.clone());
    let _holder = tokio::spawn(service.clone().oneshot(get(URI)));
    tokio::time::sleep(millis(1)).await;
    let error = service.oneshot(request("POST", URI)).await.unwrap_err();
    assert!(error.is_service() && !error.is_rate_limited() && cause::<Overloaded>(&error).is_some());
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::NotSent; 3]);
}

/// Under the limiter it has paid; above it, it has not.
#[tokio::test(start_paused = true)]
async fn below_the_limiter_what_is_shed_has_spent_its_permit() {
    let (shed, place) = (LoadShedLayer::new(), ConcurrencyLimitLayer::new(1));
    let probe = ScriptedService::new([Delayed(30, 200)]);
    let limiter = bucket(20);
    let limit = RateLimitLayer::new(limiter.clone());
    let below = ServiceBuilder::new().layer(&limit).layer(&shed).layer(&place).service(probe.clone());
    let answers = join_all((0..2).map(|_| below.clone().oneshot(get(URI)))).await;
    assert!(answers[0].is_ok() && answers[1].is_err());
    assert_eq!((probe.calls(), limiter.snapshot().granted), (1, 2));

    let above = ServiceBuilder::new().layer(&shed).layer(&place).layer(&limit).service(probe.clone());
    let answers = join_all((0..2).map(|_| above.clone().oneshot(get(URI)))).await;
    assert!(answers[0].is_ok() && answers[1].is_err());
    assert_eq!((probe.calls(), limiter.snapshot().granted), (2, 3));
}

/// Our layers are always ready and wait in the call: what they shed is said to the limiter.
#[tokio::test(start_paused = true)]
async fn above_it_sheds_nothing_unless_a_concurrency_limit_is_under_it() {
    let limit = || RateLimitLayer::new(bucket(2));
    let plain = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(limit())
        .service(ScriptedService::new([Status(200)]));
    assert!(join_all((0..3).map(|_| plain.clone().oneshot(get(URI)))).await.iter().all(Result::is_ok));

    let bounded = limit().with_max_wait(Duration::ZERO);
    let bounded = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(bounded)
        .service(ScriptedService::new([Status(200)]));
    let answers = join_all((0..3).map(|_| bounded.clone().oneshot(get(URI)))).await;
    let refused = |answer: &&Result<_, tower::BoxError>| {
        let error = answer.as_ref().err().and_then(|error| error.downcast_ref::<Error>());
        error.is_some_and(Error::is_rate_limited)
    };
    assert_eq!(answers.iter().filter(refused).count(), 2);

    let limited = ServiceBuilder::new().layer(LoadShedLayer::new()).layer(ConcurrencyLimitLayer::new(1));
    let limited = limited.layer(limit()).service(ScriptedService::new([Status(200)]));
    limited.clone().oneshot(get(URI)).await.unwrap();
    let answers = join_all((0..2).map(|_| limited.clone().oneshot(get(URI)))).await;
    assert!(answers[0].is_ok() && answers[1].as_ref().is_err_and(|error| error.is::<Overloaded>()));
}
