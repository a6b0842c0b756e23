//! Tests the events for wrong orders of layers.

use tower::layer::util::Identity;

use super::*;

const MESSAGE: &str = "retries exceed the quota: move the rate limit layer inside the retry layer";

/// Returns the events of level WARN about the limiter.
fn warnings(capture: &Capture) -> Vec<capture::Line> {
    capture.of(LIMIT).into_iter().filter(|line| line.level == Level::WARN).collect()
}

fn limit() -> RateLimitLayer<LocalLimiter> {
    RateLimitLayer::new(LocalLimiter::without_quota())
}

#[tokio::test(start_paused = true)]
async fn rate_limit_outside_retry_is_reported_once_for_each_layer() {
    let (capture, _guard) = Capture::at(LevelFilter::WARN);
    for script in [vec![Status(503), Status(200)], vec![Refused], vec![Status(503)]] {
        let service = ServiceBuilder::new()
            .layer(RequestIdLayer::new().with_service("rates"))
            .layer(limit())
            .layer(RetryLayer::new())
            .service(ScriptedService::new(script));
        for _ in 0..3 {
            let _ = service.clone().oneshot(get(URI)).await;
        }
    }
    let warnings = warnings(&capture);
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    for warning in &warnings {
        assert_eq!((&*warning.message, &*warning.fields["service"]), (MESSAGE, "rates"));
    }
    assert_eq!(warnings[1].fields["attempts"], "3");
}

#[tokio::test(start_paused = true)]
async fn request_id_inside_retry_is_reported_once_for_each_layer() {
    let (capture, _guard) = Capture::at(LevelFilter::WARN);
    let own_id = |mut request: Request<Content>| {
        request.headers_mut().insert("x-request-id", HeaderValue::from_static("from-the-caller"));
        request
    };
    for _ in 0..2 {
        let service = ServiceBuilder::new()
            .layer(RetryLayer::new())
            .layer(RequestIdLayer::new().with_service("rates"))
            .service(ScriptedService::new([Status(429)]));
        // All attempts of this call have the id of its caller.
        service.clone().oneshot(own_id(get(URI))).await.unwrap();
        let warned = capture.of(CALL).into_iter().filter(|it| it.message.contains("another request id"));
        let before = warned.count();
        for _ in 0..3 {
            service.clone().oneshot(get(URI)).await.unwrap();
        }
        let warned: Vec<_> =
            capture.of(CALL).into_iter().filter(|it| it.message.contains("another request id")).collect();
        assert_eq!(warned.len(), before + 1, "{warned:?}");
        assert_eq!((warned[0].level, &*warned[0].fields["service"]), (Level::WARN, "rates"));
    }
}

#[tokio::test(start_paused = true)]
async fn total_timeout_inside_rate_limit_is_reported_once_for_each_layer() {
    const WARNING: &str =
        "a wait for a permit had no deadline: move the total timeout layer outside the rate limit layer";
    let (capture, _guard) = Capture::at(LevelFilter::WARN);
    let (timeout, one_per_second) = (TotalTimeoutLayer::new(secs(5)).unwrap(), Quota::per_second(1).unwrap());
    macro_rules! calls {
        ($outer:expr, $inner:expr) => {
            let service = ServiceBuilder::new()
                .layer(RequestIdLayer::new().with_service("rates"))
                .layer($outer)
                .layer(RateLimitLayer::new(LocalLimiter::sliding_window(one_per_second)))
                .layer($inner)
                .service(ScriptedService::new([Status(200)]));
            for _ in 0..3 {
                service.clone().oneshot(get(URI)).await.unwrap();
            }
        };
    }
    calls!(timeout.clone(), Identity::new());
    calls!(timeout.clone(), timeout.clone());
    assert!(capture.ours().is_empty(), "{:?}", capture.ours());
    calls!(Identity::new(), timeout);
    let warnings = capture.of(CALL);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let warning = &warnings[0];
    assert_eq!(
        (warning.level, &*warning.message, &*warning.fields["service"]),
        (Level::WARN, WARNING, "rates")
    );
}

/// A layer that is used outside and inside the retry layer gives both the same id.
#[tokio::test(start_paused = true)]
async fn request_id_outside_retry_is_not_reported() {
    let (capture, _guard) = Capture::at(LevelFilter::WARN);
    let id = RequestIdLayer::new().with_log_level(Level::DEBUG);
    let service = ServiceBuilder::new()
        .layer(id.clone())
        .layer(RetryLayer::new())
        .layer(id)
        .layer(RequestIdLayer::new().with_header(HeaderName::from_static("x-attempt-id")))
        .service(ScriptedService::new([Status(429), Status(429), Status(200)]));
    service.oneshot(get(URI)).await.unwrap();
    assert!(capture.ours().is_empty(), "{:?}", capture.ours());
}

/// Each attempt of these calls ends in another way. The later attempts already have a report.
#[tokio::test(start_paused = true)]
async fn rate_limit_inside_retry_is_not_reported() {
    let (capture, _guard) = Capture::at(LevelFilter::WARN);
    for script in [vec![Status(503), NoResponse, Refused], vec![NoResponse], vec![Refused], vec![Status(429)]]
    {
        let service = ServiceBuilder::new()
            .layer(RequestIdLayer::new())
            .layer(TotalTimeoutLayer::new(secs(12)).unwrap())
            .layer(RetryLayer::new())
            .layer(limit())
            .layer(AttemptSpanLayer::new())
            .layer(AttemptTimeoutLayer::new(secs(5)).unwrap())
            .service(ScriptedService::new(script));
        for _ in 0..2 {
            let _ = service.clone().oneshot(get(URI)).await;
        }
    }
    assert!(warnings(&capture).is_empty(), "{:?}", warnings(&capture));
}

const AUTH_OUTSIDE_LIMIT: (&str, &str) =
    (LIMIT, "a key may expire during the wait for a permit: move the auth layer inside the rate limit layer");
const AUTH_OUTSIDE_RETRY: (&str, &str) =
    (RETRY, "a retry repeats a key that may have expired: move the auth layer inside the retry layer");

fn one_per_second() -> LocalLimiter {
    LocalLimiter::sliding_window(Quota::per_second(1).unwrap())
}

/// Returns an auth layer whose key may expire, or that has a fixed key.
fn auth(may_expire: bool, placement: KeyPlacement) -> AuthLayer {
    let key = ApiKey::new(if may_expire { "t0ken" } else { "k3y" }).unwrap();
    let keys: KeySource = match may_expire {
        true => RefreshingKey::new(move || ready(Ok::<_, BoxError>(FreshKey::new(key.clone())))).into(),
        false => key.into(),
    };
    AuthLayer::new(keys, Origin::parse(URI).unwrap()).unwrap().with_placement(placement)
}

/// Sends three requests at once through the layers. Returns the target and the message of each event of level WARN.
macro_rules! reported {
    ($capture:expr, $script:expr, $($layer:expr),+) => {{
        let before = $capture.ours().len();
        let service = ServiceBuilder::new().layer(RequestIdLayer::new().with_service("rates"));
        let service = service$(.layer($layer))+.service(ScriptedService::new($script));
        // Each call drops its response, whose request then leaves the limiter's count of those in flight.
        let call = || async { service.clone().oneshot(get(URI)).await.unwrap().status() };
        tokio::join!(call(), call(), call());
        let events = $capture.ours().split_off(before);
        for event in &events {
            assert_eq!((event.level, &*event.fields["service"]), (Level::WARN, "rates"));
        }
        events.into_iter().map(|event| (event.target, event.message)).collect::<Vec<_>>()
    }};
}

fn owned(events: &[(&str, &str)]) -> Vec<(String, String)> {
    events.iter().map(|(target, message)| ((*target).to_owned(), (*message).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn auth_outside_rate_limit_or_retry_is_reported_once_for_each_layer() {
    let (capture, _guard) = Capture::at(LevelFilter::WARN);
    let script = [503, 503, 503, 200].map(Status);
    let (retry, limit) = (RetryLayer::new, || RateLimitLayer::new(one_per_second()));
    let bearer = || auth(true, KeyPlacement::bearer());
    for _ in 0..2 {
        let reported = reported!(capture, script, bearer(), retry(), limit());
        assert_eq!(reported, owned(&[AUTH_OUTSIDE_LIMIT, AUTH_OUTSIDE_RETRY]));
        let reported = reported!(capture, script, retry(), bearer(), limit());
        assert_eq!(reported, owned(&[AUTH_OUTSIDE_LIMIT]));
    }
    let basic = auth(true, KeyPlacement::basic("ann").unwrap());
    assert_eq!(reported!(capture, script, basic, retry()), owned(&[AUTH_OUTSIDE_RETRY]));
    // These keys do not expire, or the layers do not see them.
    for (may_expire, placement) in
        [(false, KeyPlacement::bearer()), (true, KeyPlacement::query("key").unwrap())]
    {
        let auth = auth(may_expire, placement);
        assert_eq!(reported!(capture, script, auth, retry(), limit()), []);
    }
    assert_eq!(reported!(capture, script, retry(), limit(), bearer()), []);
    // An API may require a subscription key besides the token.
    let subscription =
        auth(false, KeyPlacement::header(HeaderName::from_static("x-subscription-key")).unwrap());
    assert_eq!(reported!(capture, script, subscription, retry(), limit(), bearer()), []);
}

/// All permits expire during the wait for the key. The layer then acquires others, with the same requests.
#[tokio::test(start_paused = true)]
async fn renewal_of_a_permit_is_not_reported() {
    let (capture, _guard) = Capture::at(LevelFilter::WARN);
    let key = || async {
        tokio::time::sleep(secs(5)).await;
        Ok::<_, BoxError>(FreshKey::new(ApiKey::new("k3y")?))
    };
    let auth = AuthLayer::new(RefreshingKey::new(key), Origin::parse(URI).unwrap()).unwrap();
    let start = tokio::time::Instant::now();
    assert_eq!(reported!(capture, [Status(200)], RateLimitLayer::new(one_per_second()), auth), []);
    assert!(start.elapsed() > secs(7));
}
