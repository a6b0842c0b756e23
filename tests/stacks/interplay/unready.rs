//! tower's `LoadShed` over a service that is not ready, and over one that gets ready later.

use http::{Request, Response};
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt,
    load_shed::{LoadShed, LoadShedLayer, error::Overloaded},
};
use tower_outbound::{
    ApiKey, Error, ExponentialBackoff, Jitter, Report,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, Origin},
    call::Outcome,
    limit::{RateLimitLayer, TokenBucket},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::{BodyIdleTimeoutLayer, TimeoutLayer},
};

use super::{
    URI, bucket, outcomes, rates,
    support::{Content, Limited, Scripted::*, ScriptedService, cause, get, millis, request, secs},
};

/// One that is busy for the next 100 ms, with the call that makes it so.
async fn busy() -> Limited {
    let probe = Limited::over(ScriptedService::new([Delayed(100, 200), Status(200)])).with_permits(1);
    tokio::spawn(probe.clone().oneshot(get(URI)));
    tokio::time::sleep(millis(1)).await;
    assert_eq!(probe.permits_taken(), 1);
    probe
}

fn is_shed(error: &BoxError) -> bool {
    error.is::<Overloaded>()
        || error.downcast_ref::<Error>().is_some_and(|error| cause::<Overloaded>(error).is_some())
}

/// Shed, or answered once the service is ready; and answered then in any case.
async fn meets<L, S, R>(name: &str, layer: L, sheds: bool)
where
    L: Layer<Limited, Service = S>,
    S: Service<Request<Content>, Response = Response<R>, Error: Into<BoxError>> + Clone,
{
    let never = Limited::over(ScriptedService::new([Status(200)])).with_permits(0);
    let called = tokio::time::timeout(secs(300), layer.layer(never.clone()).oneshot(get(URI))).await;
    let shed = called.ok().and_then(Result::err).map(Into::into).is_some_and(|error| is_shed(&error));
    assert_eq!((shed, never.calls()), (sheds, 0), "{name}, over what is never ready");

    let probe = busy().await;
    let start = tokio::time::Instant::now();
    let service = layer.layer(probe.clone());
    match service.clone().oneshot(get(URI)).await.map_err(Into::into) {
        Ok(_) => assert!(!sheds && start.elapsed() >= millis(99), "{name} has waited"),
        Err(error) => assert!(sheds && is_shed(&error) && start.elapsed().is_zero(), "{name}: {error}"),
    }
    tokio::time::sleep(millis(100)).await;
    assert!(service.oneshot(get(URI)).await.is_ok(), "{name}, ready by now");
    assert_eq!(probe.calls(), if sheds { 2 } else { 3 }, "{name}");
}

/// Layers of ours that ready their service in the call hide from `LoadShed` above that it isn't.
#[tokio::test(start_paused = true)]
async fn above_it_sheds_over_those_of_ours_that_pass_readiness_on() {
    macro_rules! above {
        ($name:literal, $ours:expr, $sheds:expr) => {
            meets($name, ServiceBuilder::new().layer(LoadShedLayer::new()).layer($ours), $sheds).await
        };
    }
    above!("auth", auth(), true);
    above!("request id", RequestIdLayer::new(), true);
    above!("attempt", AttemptSpanLayer::new(), true);
    above!("total timeout", TimeoutLayer::total(secs(60)).unwrap(), true);
    above!("attempt timeout", TimeoutLayer::per_attempt(secs(10)).unwrap(), true);
    above!("body idle", BodyIdleTimeoutLayer::new(secs(1)).unwrap(), true);
    above!("limit", RateLimitLayer::new(bucket(6)), false);
    above!("retry", RetryLayer::new(), false);
    above!("preset", rates().layer().unwrap(), false);
}

/// Below it sheds under each of them; only retry, and so a preset, comes again.
#[tokio::test(start_paused = true)]
async fn below_it_sheds_under_each_of_ours() {
    macro_rules! below {
        ($name:literal, $ours:expr) => {
            meets($name, ServiceBuilder::new().layer($ours).layer(LoadShedLayer::new()), true).await
        };
    }
    below!("auth", auth());
    below!("request id", RequestIdLayer::new());
    below!("attempt", AttemptSpanLayer::new());
    below!("total timeout", TimeoutLayer::total(secs(60)).unwrap());
    below!("attempt timeout", TimeoutLayer::per_attempt(secs(10)).unwrap());
    below!("body idle", BodyIdleTimeoutLayer::new(secs(1)).unwrap());
    below!("limit", RateLimitLayer::new(bucket(6)));
}

fn auth() -> AuthLayer {
    AuthLayer::new(ApiKey::new("s3cret").unwrap(), Origin::parse(URI).unwrap()).unwrap()
}

type Under = tower_outbound::retry::Retry<tower_outbound::limit::RateLimit<LoadShed<Limited>, TokenBucket>>;

fn shedding(probe: &Limited, limiter: &TokenBucket) -> Under {
    let backoff = ExponentialBackoff::new(millis(60), secs(1)).unwrap().with_jitter(Jitter::none());
    ServiceBuilder::new()
        .layer(RetryLayer::new().with_backoff(backoff))
        .layer(RateLimitLayer::new(limiter.clone()))
        .layer(LoadShedLayer::new())
        .service(probe.clone())
}

/// Each that is shed counts as an attempt that was not sent, whatever the method, and has spent a permit.
#[tokio::test(start_paused = true)]
async fn below_what_gets_ready_meanwhile_is_reached_by_a_later_attempt() {
    for method in ["GET", "POST"] {
        let (probe, limiter) = (busy().await, bucket(20));
        let answer = shedding(&probe, &limiter).oneshot(request(method, URI)).await.unwrap();
        let report = Report::from_response(&answer).unwrap();
        assert_eq!(
            outcomes(report),
            [Outcome::NotSent, Outcome::NotSent, Outcome::Response(answer.status())]
        );
        // The one that made it busy, and the last attempt.
        assert_eq!((probe.calls(), limiter.snapshot().granted), (2, 3), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn below_what_never_gets_ready_is_given_up_as_not_sent() {
    let (probe, limiter) = (Limited::over(ScriptedService::new([Status(200)])).with_permits(0), bucket(20));
    let error = shedding(&probe, &limiter).oneshot(request("POST", URI)).await.unwrap_err();
    assert!(error.is_service() && !error.is_rate_limited() && cause::<Overloaded>(&error).is_some());
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::NotSent; 3]);
    assert_eq!((probe.calls(), limiter.snapshot().granted), (0, 3));

    let preset = ServiceBuilder::new().layer(rates().layer().unwrap()).layer(LoadShedLayer::new());
    let error = preset.service(probe.clone()).oneshot(request("POST", URI)).await.unwrap_err();
    assert!(cause::<Overloaded>(&error).is_some() && probe.calls() == 0);
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::NotSent; 3]);
}
