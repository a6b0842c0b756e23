//! Tests which events the refusals of a limiter have.

use super::*;

const MESSAGE: &str = "limiter refused a request";

/// Returns a stack whose limiter has refused all requests but one per hour.
async fn exhausted(layer: RequestIdLayer) -> impl CallService {
    let quota = Quota::new(2, secs(3_600)).unwrap().with_burst(1).unwrap();
    let limiter = RateLimitLayer::new(LocalLimiter::paced_window(quota)).with_max_wait(secs(1));
    let service = ServiceBuilder::new()
        .layer(layer.with_service("rates"))
        .layer(RetryLayer::new())
        .layer(limiter)
        .service(ScriptedService::new([Status(200)]));
    service.clone().oneshot(get(URI)).await.unwrap();
    service
}

trait CallService: Service<Request<Content>, Error = tower_outbound::Error> + Clone {}

impl<S: Service<Request<Content>, Error = tower_outbound::Error> + Clone> CallService for S {}

async fn refuse(service: &impl CallService, calls: usize) {
    for _ in 0..calls {
        assert!(service.clone().oneshot(get(URI)).await.err().unwrap().is_rate_limited());
    }
}

/// Returns the level and the field `suppressed` of each event of the limiter about a refusal.
fn refusals(capture: &Capture) -> Vec<(Level, Option<String>)> {
    let events = capture.of(LIMIT).into_iter().filter(|event| event.message == MESSAGE);
    events.map(|event| (event.level, event.fields.get("suppressed").cloned())).collect()
}

#[tokio::test(start_paused = true)]
async fn flood_of_refusals_has_one_warn_event_in_ten_seconds_with_the_number_of_the_others() {
    let (capture, _guard) = Capture::all();
    let service = exhausted(RequestIdLayer::new()).await;
    refuse(&service, 5).await;
    tokio::time::advance(millis(9_999)).await;
    refuse(&service, 1).await;
    tokio::time::advance(millis(1)).await;
    refuse(&service, 2).await;
    tokio::time::advance(secs(60)).await;
    refuse(&service, 1).await;
    // Another layer has its own WARN event.
    refuse(&exhausted(RequestIdLayer::new()).await, 1).await;

    let (warn, debug) = (Level::WARN, (Level::DEBUG, None));
    let counted = |count: &str| (warn, Some(count.to_owned()));
    let flood = [(warn, None), debug.clone(), debug.clone(), debug.clone(), debug.clone(), debug.clone()];
    let later = [counted("5"), debug, counted("1"), (warn, None)];
    assert_eq!(refusals(&capture), [&flood[..], &later].concat());
    let first = capture.of(LIMIT).into_iter().find(|event| event.message == MESSAGE).unwrap();
    assert_eq!((&*first.fields["service"], &*first.fields["reason"]), ("rates", "max_wait"));
    let cause = "the wait would exceed the allowed maximum (required wait: ";
    assert!(first.fields["error"].starts_with(cause), "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn refusal_has_the_unit_whose_quota_delays_it() {
    let (capture, _guard) = Capture::all();
    refuse_for_tokens_and_for_requests().await;
    let refusals = capture.of(LIMIT).into_iter().filter(|event| event.message == MESSAGE);
    let units: Vec<_> = refusals.map(|event| event.fields.get("unit").cloned()).collect();
    assert_eq!(units, [Some("tokens".to_owned()), None]);
}

#[tokio::test(start_paused = true)]
async fn refused_call_is_logged_once_at_the_level_of_completed_calls() {
    for level in [Level::INFO, Level::DEBUG] {
        let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
        let service = exhausted(RequestIdLayer::new().with_log_level(level)).await;
        refuse(&service, 3).await;
        let calls = capture.of(CALL).split_off(1);
        assert_eq!(calls.len(), 3);
        for call in calls {
            let shown = (call.level, &*call.message, &*call.fields["error.type"]);
            assert_eq!(shown, (level, "call failed", "rate_limited"));
        }
    }
}

/// The limiter refuses the second attempt. The call ends with the error of the first one, or with the refusal if the
/// first one got a response.
#[tokio::test(start_paused = true)]
async fn call_that_failed_before_a_refusal_is_logged_at_warn() {
    for (api, expected) in
        [(ScriptedService::new([Refused]), "connect_refused"), (ScriptedService::new([503]), "rate_limited")]
    {
        let (capture, _guard) = Capture::at(LevelFilter::INFO);
        let quota = Quota::new(2, secs(3_600)).unwrap().with_burst(1).unwrap();
        let service = ServiceBuilder::new()
            .layer(RequestIdLayer::new())
            .layer(RetryLayer::new())
            .layer(RateLimitLayer::new(LocalLimiter::paced_window(quota)).with_max_wait(secs(1)))
            .service(api);
        service.oneshot(get(URI)).await.unwrap_err();
        let [call] = &capture.of(CALL)[..] else { panic!("{:?}", capture.ours()) };
        assert_eq!((call.level, &*call.fields["error.type"]), (Level::WARN, expected));
    }
}
