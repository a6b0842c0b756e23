//! Tests all layers of a preset together, with tokio's clock paused.

use http::request;
use tower_outbound::auth::{BoxSignFuture, Sign};

use super::{taken_apart::maybe_rebuilt, *};

#[tokio::test(start_paused = true)]
async fn total_timeout_covers_backoffs_attempts_and_waits_in_the_limiter_queue() {
    let script = || [ScriptedResponse::status(503), ScriptedResponse::never(), ok()];
    let mut headers = Vec::new();
    for is_rebuilt in [false, true] {
        let preset = preset_with_exact_delays().with_total_timeout(2 * MINUTE);
        let (service, scripted) = maybe_rebuilt(&preset, script(), is_rebuilt);
        let start = Instant::now();
        let response = service.oneshot(get("https://host/v1")).await.unwrap();

        // The first attempt gets a 503. After a backoff of 100 ms, the second attempt starts, and times out after 10 s.
        // After a backoff of 200 ms, the third attempt waits for a permit.
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
        assert_eq!((attempts[2].queued, report.queued()), (49_700 * MILLI, 49_700 * MILLI));
        assert_eq!(report.stop_reason(), Some(StopReason::Success));
        headers.extend(scripted.seen().into_iter().map(|seen| {
            let mut headers = seen.head.headers;
            assert!(headers.remove("x-request-id").is_some());
            headers
        }));
    }
    assert!(headers.iter().all(|other| *other == headers[0]), "{headers:?}");
}

#[tokio::test(start_paused = true)]
async fn call_fails_fast_if_a_retry_would_get_its_permit_after_the_deadline() {
    for is_rebuilt in [false, true] {
        let preset = preset_with_exact_delays().with_total_timeout(MINUTE / 2);
        let script = [ScriptedResponse::status(503), ScriptedResponse::never()];
        let (service, scripted) = maybe_rebuilt(&preset, script, is_rebuilt);
        let start = Instant::now();
        let error = service.oneshot(get("https://host/v1")).await.unwrap_err();

        assert_eq!(arrivals(&scripted, start), [Duration::ZERO, 100 * MILLI]);
        assert_eq!(start.elapsed(), 10_300 * MILLI, "the call fails before its deadline of 30 s");
        // The error is the timeout of the second attempt. The report states why no third attempt was sent.
        assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
        assert_eq!(error.retry_after(), Some(49_700 * MILLI));
        assert_eq!(error.report().unwrap().attempts()[2].outcome, Some(Outcome::Refused));
        assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::Deadline));
    }
}

#[tokio::test(start_paused = true)]
async fn builder_keeps_its_retry_rules_if_it_declares_a_post_idempotent() {
    let builder = StackBuilder::new("https://host").unwrap().without_credential();
    let builder =
        builder.retry_on([StatusCode::CONFLICT]).with_idempotent(|head| head.uri.path() == "/search");
    for (path, calls) in [("/search", 3), ("/orders", 1)] {
        let (service, scripted) = stack(&builder, [ScriptedResponse::status(409)]);
        let request = Request::post(format!("https://host{path}")).body(Empty::new()).unwrap();
        assert_eq!(service.oneshot(request).await.unwrap().status(), 409);
        assert_eq!(scripted.calls(), calls, "{path}");
    }
}

#[test]
fn stack_gives_access_to_its_inner_service() {
    #[derive(Debug, Clone, PartialEq)]
    struct Inner(u8);

    struct Signer;

    impl Sign for Signer {
        fn sign<'a>(&'a self, _: &'a mut request::Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
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
