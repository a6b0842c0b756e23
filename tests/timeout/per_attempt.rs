//! Tests the timeout of one attempt.

use super::*;

#[tokio::test(start_paused = true)]
async fn attempt_timeout_is_shortened_to_the_time_left_before_the_deadline() {
    for (total_millis, attempt_millis, expected, is_deadline) in [
        (1000, 5000, 1000, true),
        (5000, 1000, 1000, false),
        (1000, 1000, 1000, true), // the error is a deadline error if both expire together
    ] {
        let service = ServiceBuilder::new()
            .layer(total(millis(total_millis)))
            .layer(per_attempt(millis(attempt_millis)))
            .service(ScriptedService::new([NoResponse]));
        let start = Instant::now();
        let error = service.oneshot(get(URI)).await.unwrap_err();
        assert_eq!(start.elapsed(), millis(expected), "{total_millis} {attempt_millis}");
        assert!(error.is_timeout());
        assert_eq!(error.is_deadline(), is_deadline, "{total_millis} {attempt_millis}");
    }
}

/// The attempt timeout of a stack also ends an attempt whose service has a longer timeout.
#[tokio::test(start_paused = true)]
async fn attempt_timeout_of_a_stack_ends_before_the_timeout_of_its_service() {
    let stack = StackBuilder::new(URI).unwrap().without_credential().with_max_attempts(1);
    let stack = stack.with_attempt_timeout(secs(1)).layer().unwrap();
    for deadline in [None, Some(secs(50))] {
        let server = per_attempt(secs(60)).layer(ScriptedService::new([NoResponse]));
        let (start, mut request) = (Instant::now(), get(URI));
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(Deadline(start + deadline));
        }
        let error = stack.layer(server).oneshot(request).await.unwrap_err();
        assert!(error.is_timeout() && !error.is_deadline(), "{error:?}");
        assert_eq!(start.elapsed(), secs(1), "{deadline:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn override_of_a_request_replaces_the_limit_of_each_of_its_attempts() {
    for (layer, own, expected) in [(2, 5, 5), (5, 2, 2), (5, 60, 20)] {
        let server = ScriptedService::new([NoResponse]);
        let service = ServiceBuilder::new()
            .layer(total(secs(20)))
            .layer(RetryLayer::new().with_custom_backoff(|| std::iter::repeat(Duration::ZERO)))
            .layer(per_attempt(secs(layer)))
            .service(server.clone());
        let mut request = get(URI);
        request.extensions_mut().insert(AttemptTimeoutOverride::new(secs(own)).unwrap());
        let error = service.oneshot(request).await.unwrap_err();
        let report = error.report().unwrap();
        let took: Vec<_> = report.attempts().iter().filter_map(|it| Some(it.ended? - it.started)).collect();
        if own < 20 {
            assert_eq!(took, [secs(expected); 3]);
            assert!(error.to_string().starts_with(&format!("no response within {own}s")), "{error}");
        } else {
            // The deadline of the call is earlier.
            assert!(error.is_deadline() && server.calls() == 1, "{error:?}");
        }
    }
    let error = AttemptTimeoutOverride::new(Duration::ZERO).unwrap_err();
    assert_eq!(error.to_string(), "invalid attempt timeout `0ns`: expected more than zero");
}
