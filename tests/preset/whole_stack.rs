//! The layers of a preset together, on paused time.

use http::request;
use tower_outbound::{
    auth::{Sign, Signing},
    test_util::Arrivals,
};

use super::*;

#[tokio::test(start_paused = true)]
async fn one_deadline_covers_backoff_attempt_timeout_and_queue() {
    let preset = preset_with_exact_delays().with_total_timeout(2 * MINUTE);
    let (service, scripted) =
        stack(&preset, [ScriptedResponse::status(503), ScriptedResponse::never(), ok()]);
    let start = Instant::now();
    let response = service.oneshot(get("https://host/v1")).await.unwrap();

    // An immediate 503, 100 ms of backoff, 10 s of attempt timeout, 200 ms of backoff, and the wait for a permit.
    assert_eq!(arrivals(&scripted, start), [Duration::ZERO, 100 * MILLI, MINUTE]);
    assert_eq!((response.status().as_u16(), start.elapsed()), (200, MINUTE));
    let report = response.extensions().get::<Report>().unwrap();
    let attempts = report.attempts();
    let outcomes: Vec<_> = attempts.iter().filter_map(|attempt| attempt.outcome).collect();
    let unavailable = Outcome::Response(StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(outcomes, [unavailable, Outcome::Timeout, Outcome::Response(StatusCode::OK)]);
    assert_eq!([attempts[0].delay, attempts[1].delay], [Some(100 * MILLI), Some(200 * MILLI)]);
    assert_eq!(attempts[1].ended, Some(10_100 * MILLI));
    assert_eq!(attempts[2].started, 10_300 * MILLI);
    assert_eq!((attempts[2].waited, report.waited()), (49_700 * MILLI, 49_700 * MILLI));
    assert_eq!(report.stop_reason(), Some(StopReason::Success));
}

#[tokio::test(start_paused = true)]
async fn fails_fast_if_the_permit_of_a_retry_would_be_too_late() {
    let preset = preset_with_exact_delays().with_total_timeout(MINUTE / 2);
    let (service, scripted) = stack(&preset, [ScriptedResponse::status(503), ScriptedResponse::never()]);
    let start = Instant::now();
    let error = service.oneshot(get("https://host/v1")).await.unwrap_err();

    assert_eq!(arrivals(&scripted, start), [Duration::ZERO, 100 * MILLI]);
    assert_eq!(start.elapsed(), 10_300 * MILLI, "fails before the deadline of 30 s");
    // The error is the failure of the last attempt. The report has the reason why no attempt followed.
    assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
    assert_eq!(error.retry_after(), Some(49_700 * MILLI));
    assert_eq!(error.report().unwrap().attempts()[2].outcome, Some(Outcome::Refused));
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Deadline));
}

#[tokio::test(start_paused = true)]
async fn timeouts_limit_each_attempt_and_the_whole_call() {
    let preset = preset_with_exact_delays().with_quota(Quota::per_minute(1000).unwrap());
    let (service, scripted) = stack(&preset, [ScriptedResponse::never()]);
    let start = Instant::now();
    let error = service.oneshot(get("https://host/v1")).await.unwrap_err();
    assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
    assert_eq!(arrivals(&scripted, start), [Duration::ZERO, 10_100 * MILLI, 20_300 * MILLI]);
    assert_eq!(start.elapsed(), 30_300 * MILLI);
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Exhausted));

    let (service, scripted) = stack(&preset.with_total_timeout(15 * SECOND), [ScriptedResponse::never()]);
    let start = Instant::now();
    let error = service.oneshot(get("https://host/v1")).await.unwrap_err();
    assert!(error.is_timeout() && error.is_deadline(), "{error:?}");
    assert_eq!((arrivals(&scripted, start).len(), start.elapsed()), (2, 15 * SECOND));
    assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Deadline));
}

#[tokio::test(start_paused = true)]
async fn a_requested_delay_applies_to_every_caller() {
    let preset = preset_with_exact_delays().with_quota(Quota::per_minute(1000).unwrap());
    let (service, scripted) = stack(&preset, [throttled("7"), ok()]);
    let start = Instant::now();
    let throttled_call = tokio::spawn(service.clone().oneshot(get("https://host/v1")));
    tokio::time::sleep(SECOND).await;
    let other = service.oneshot(get("https://host/v2")).await.unwrap();
    assert_eq!(
        (other.status().as_u16(), throttled_call.await.unwrap().unwrap().status().as_u16()),
        (200, 200)
    );
    let arrivals = arrivals(&scripted, start);
    assert_eq!(arrivals.len(), 3);
    assert!(arrivals[1..].iter().all(|time| *time >= 7 * SECOND && *time < 8 * SECOND), "{arrivals:?}");
}

/// Sends four times the limit of each preset, and checks every window of one minute.
#[tokio::test(start_paused = true)]
async fn the_documented_quotas_hold_in_every_window() {
    for (preset, limit) in [(preset::currency_rates as PresetFn, 100), (preset::email_delivery, 1000)] {
        let preset = preset("https://host").unwrap().with_api_key(key()).with_total_timeout(HOUR);
        let (service, scripted) = stack(&preset, [ok()]);
        let calls = (0..4 * limit).map(|_| service.clone().oneshot(get("https://host/")));
        for result in futures_util::future::join_all(calls).await {
            assert_eq!(result.unwrap().status(), 200);
        }
        let seen = scripted.seen();
        assert_eq!(seen.len(), 4 * limit);
        let documented = Quota::per_minute(limit as u32).unwrap();
        seen.iter().map(|seen| seen.at).collect::<Arrivals>().assert_within(documented);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_without_a_quota_do_not_wait() {
    let preset = preset::realtime_messaging("https://host").unwrap().with_api_key(key());
    let (service, scripted) = stack(&preset, [ok()]);
    let start = Instant::now();
    let calls = (0..5000).map(|_| service.clone().oneshot(get("https://host/")));
    assert!(futures_util::future::join_all(calls).await.iter().all(Result::is_ok));
    assert_eq!((scripted.calls(), start.elapsed()), (5000, Duration::ZERO));
}

#[test]
fn a_stack_returns_its_inner_service() {
    #[derive(Debug, Clone, PartialEq)]
    struct Inner(u8);

    struct Signer;

    impl Sign for Signer {
        fn sign<'a>(&'a self, _: &'a mut request::Parts, _: Option<&'a Bytes>) -> Signing<'a> {
            Box::pin(async { Ok(()) })
        }
    }

    let preset = preset_with_key("https://host");
    for preset in [preset.clone(), preset.clone().with_signature(Signer), preset.without_credential()] {
        let mut stack = preset.layer().unwrap().layer(Inner(1));
        assert_eq!(stack.get_ref(), &Inner(1));
        stack.get_mut().0 = 2;
        assert_eq!(stack.clone().into_inner(), Inner(2));
        assert_eq!(stack.into_inner(), Inner(2));
    }
}
