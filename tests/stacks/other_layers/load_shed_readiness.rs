//! Tests tower's `LoadShed` over a service that is never ready, and over a service that becomes ready later.

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
    limit::{LocalLimiter, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::{AttemptTimeoutLayer, BodyIdleTimeoutLayer, TotalTimeoutLayer},
};

use super::{
    URI, bucket, outcomes, rates,
    support::{Content, Limited, Scripted::*, ScriptedService, cause, get, millis, request, secs},
};

/// Returns a service that allows one concurrent call and is busy for the next 100 ms.
async fn busy() -> Limited {
    let client = Limited::over(ScriptedService::new([Delayed(100, 200), Status(200)])).with_permits(1);
    tokio::spawn(client.clone().oneshot(get(URI)));
    tokio::time::sleep(millis(1)).await;
    assert_eq!(client.permits_taken(), 1);
    client
}

fn is_rejected(error: &BoxError) -> bool {
    error.is::<Overloaded>()
        || error.downcast_ref::<Error>().is_some_and(|error| cause::<Overloaded>(error).is_some())
}

/// If `rejects` is `true`, asserts that a call to a busy service is rejected. Otherwise asserts that the call waits
/// until the service is ready. In both cases, a later call must succeed.
async fn check<L, S, R>(name: &str, layer: L, rejects: bool)
where
    L: Layer<Limited, Service = S>,
    S: Service<Request<Content>, Response = Response<R>, Error: Into<BoxError>> + Clone,
{
    let never = Limited::over(ScriptedService::new([Status(200)])).with_permits(0);
    let called = tokio::time::timeout(secs(300), layer.layer(never.clone()).oneshot(get(URI))).await;
    let rejected = called.ok().and_then(Result::err).map(Into::into).is_some_and(|error| is_rejected(&error));
    assert_eq!(
        (rejected, never.calls()),
        (rejects, 0),
        "LoadShed and {name} over a service that is never ready"
    );

    let client = busy().await;
    let start = tokio::time::Instant::now();
    let service = layer.layer(client.clone());
    match service.clone().oneshot(get(URI)).await.map_err(Into::into) {
        Ok(_) => assert!(
            !rejects && start.elapsed() >= millis(99),
            "LoadShed and {name} did not wait for a busy service"
        ),
        Err(error) => assert!(rejects && is_rejected(&error) && start.elapsed().is_zero(), "{name}: {error}"),
    }
    tokio::time::sleep(millis(100)).await;
    assert!(
        service.oneshot(get(URI)).await.is_ok(),
        "LoadShed and {name} over a service that is ready again"
    );
    assert_eq!(client.calls(), if rejects { 2 } else { 3 }, "{name}");
}

/// The limit and retry layers poll the readiness of their inner service only after `call`. `LoadShed` around these
/// layers therefore does not see whether the inner service is ready.
#[tokio::test(start_paused = true)]
async fn load_shed_rejects_calls_only_around_layers_that_forward_readiness() {
    macro_rules! above {
        ($name:literal, $layer:expr, $rejects:expr) => {
            check($name, ServiceBuilder::new().layer(LoadShedLayer::new()).layer($layer), $rejects).await
        };
    }
    above!("auth", auth(), true);
    above!("request id", RequestIdLayer::new(), true);
    above!("attempt", AttemptSpanLayer::new(), true);
    above!("total timeout", TotalTimeoutLayer::new(secs(60)).unwrap(), true);
    above!("attempt timeout", AttemptTimeoutLayer::new(secs(10)).unwrap(), true);
    above!("body idle", BodyIdleTimeoutLayer::new(secs(1)).unwrap(), true);
    above!("limit", RateLimitLayer::new(bucket(6)), false);
    above!("retry", RetryLayer::new(), false);
    above!("preset", rates().layer().unwrap(), false);
}

/// This test omits the retry layer and the presets, because both retry a rejected request.
#[tokio::test(start_paused = true)]
async fn load_shed_inside_any_layer_except_retry_and_presets_rejects_calls() {
    macro_rules! below {
        ($name:literal, $layer:expr) => {
            check($name, ServiceBuilder::new().layer($layer).layer(LoadShedLayer::new()), true).await
        };
    }
    below!("auth", auth());
    below!("request id", RequestIdLayer::new());
    below!("attempt", AttemptSpanLayer::new());
    below!("total timeout", TotalTimeoutLayer::new(secs(60)).unwrap());
    below!("attempt timeout", AttemptTimeoutLayer::new(secs(10)).unwrap());
    below!("body idle", BodyIdleTimeoutLayer::new(secs(1)).unwrap());
    below!("limit", RateLimitLayer::new(bucket(6)));
}

fn auth() -> AuthLayer {
    AuthLayer::new(ApiKey::new("s3cret").unwrap(), Origin::parse(URI).unwrap()).unwrap()
}

type Stack = tower_outbound::retry::Retry<tower_outbound::limit::RateLimit<LoadShed<Limited>, LocalLimiter>>;

fn shedding(client: &Limited, limiter: &LocalLimiter) -> Stack {
    let backoff = ExponentialBackoff::new(millis(60), secs(1)).unwrap().with_jitter(Jitter::none());
    ServiceBuilder::new()
        .layer(RetryLayer::new().with_backoff(backoff))
        .layer(RateLimitLayer::new(limiter.clone()))
        .layer(LoadShedLayer::new())
        .service(client.clone())
}

/// An attempt that `LoadShed` rejects spends a permit. The attempt counts as not sent, so even a POST is retried.
#[tokio::test(start_paused = true)]
async fn later_attempt_reaches_a_service_that_became_ready_behind_load_shed() {
    for method in ["GET", "POST"] {
        let (client, limiter) = (busy().await, bucket(20));
        let response = shedding(&client, &limiter).oneshot(request(method, URI)).await.unwrap();
        let report = Report::from_response(&response).unwrap();
        assert_eq!(
            outcomes(report),
            [Outcome::NotSent, Outcome::NotSent, Outcome::Response(response.status())]
        );
        // The client received two requests: the call that kept the service busy, and the last attempt of the tested
        // call.
        assert_eq!((client.calls(), limiter.snapshot().granted), (2, 3), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_to_an_unready_service_behind_load_shed_count_as_not_sent() {
    let (client, limiter) = (Limited::over(ScriptedService::new([Status(200)])).with_permits(0), bucket(20));
    let error = shedding(&client, &limiter).oneshot(request("POST", URI)).await.unwrap_err();
    assert!(error.is_service() && !error.is_rate_limited() && cause::<Overloaded>(&error).is_some());
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::NotSent; 3]);
    assert_eq!((client.calls(), limiter.snapshot().granted), (0, 3));

    let preset = ServiceBuilder::new().layer(rates().layer().unwrap()).layer(LoadShedLayer::new());
    let error = preset.service(client.clone()).oneshot(request("POST", URI)).await.unwrap_err();
    assert!(cause::<Overloaded>(&error).is_some() && client.calls() == 0);
    assert_eq!(outcomes(error.report().unwrap()), [Outcome::NotSent; 3]);
}
