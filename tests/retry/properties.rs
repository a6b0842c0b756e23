//! Tests properties of calls with random settings and random responses.

use std::io::ErrorKind::BrokenPipe;

use proptest::{prelude::*, sample::select};
use tokio::runtime::Builder;
use tower_outbound::call::AttemptReport;

use super::{
    support::{
        Scripted::{self, *},
        Seen,
        cases::cases,
        request,
    },
    *,
};

#[derive(Debug, Clone)]
struct Settings {
    seed: u64,
    method: &'static str,
    max_attempts: u32,
    /// The maximum number of attempts that the request's extensions set. If `None`, the layer's maximum applies.
    request_max_attempts: Option<u32>,
    /// Whether the server honours an idempotency key.
    honours_key: bool,
    retry_rejected: RetryRejected,
    /// Whether the request's extensions declare the request idempotent.
    declared_idempotent: bool,
    /// The backoff after transient failures and after throttled responses. Each has a base and a cap in milliseconds,
    /// and a jitter in percent.
    backoffs: [(u64, u64, u8); 2],
    /// The longest requested delay that the layer accepts, in seconds.
    max_retry_after: u64,
    /// The capacity of the retry budget, or `None` for no budget.
    budget: Option<u32>,
    /// The timeout of the whole call, in milliseconds.
    total_timeout: Option<u64>,
    /// The deadline in the request's extensions, in milliseconds from the start of the call.
    request_deadline: Option<u64>,
    /// The timeout of each attempt, in milliseconds.
    attempt_timeout: u64,
}

/// The timing, requests, attempts and stop reason of a call that has ended.
struct EndedCall {
    start: Instant,
    duration: Duration,
    seen: Vec<Seen>,
    attempts: Vec<AttemptReport>,
    stop_reason: Option<StopReason>,
}

fn responses() -> impl Strategy<Value = Vec<Scripted>> {
    let delays = select(vec!["0", "1", "3", "7", "30"]);
    let response = prop_oneof![
        2 => select(vec![200, 404, 409, 500, 503, 429, 101]).prop_map(Status),
        3 => select(vec![500, 503, 429, 429, 408]).prop_map(Status),
        3 => (select(vec![503, 429, 500]), delays).prop_map(|(status, delay)| RetryAfter(status, delay)),
        2 => Just(Refused),
        2 => select(vec![ConnectionReset, BrokenPipe]).prop_map(Io),
        1 => Just(NoResponse),
        1 => (1..3_000_u64, select(vec![200, 503])).prop_map(|(after, status)| Delayed(after, status)),
        1 => select(vec![200, 503]).prop_map(BeforeBody),
    ];
    prop::collection::vec(response, 1..10)
}

fn backoff() -> impl Strategy<Value = (u64, u64, u8)> {
    (1..2_000_u64, 0..10_000_u64, 0..=100_u8).prop_map(|(base, more, jitter)| (base, base + more, jitter))
}

fn settings() -> impl Strategy<Value = Settings> {
    let deadline = || prop::option::of(1..30_000_u64);
    let rare = || prop::bool::weighted(0.2);
    (
        (any::<u64>(), select(vec!["GET", "PUT", "DELETE", "POST", "POST", "PATCH"])),
        (1..8_u32, prop::option::weighted(0.2, 1..8_u32), prop::option::of(14..60_u32)),
        (rare(), rare(), select(vec![RetryRejected::AnyMethod, RetryRejected::Idempotent])),
        ([backoff(), backoff()], 0..40_u64),
        ([deadline(), deadline()], 1..5_000_u64),
    )
        .prop_map(|(request, attempts, idempotency, delays, limits)| {
            let (seed, method) = request;
            let (max_attempts, request_max_attempts, budget) = attempts;
            let (honours_key, declared_idempotent, retry_rejected) = idempotency;
            let (backoffs, max_retry_after) = delays;
            let ([total_timeout, request_deadline], attempt_timeout) = limits;
            Settings {
                seed,
                method,
                max_attempts,
                request_max_attempts,
                honours_key,
                retry_rejected,
                declared_idempotent,
                backoffs,
                max_retry_after,
                budget,
                total_timeout,
                request_deadline,
                attempt_timeout,
            }
        })
}

fn layer(settings: &Settings) -> RetryLayer {
    let backoff = |(base, cap, jitter)| {
        let backoff = ExponentialBackoff::new(millis(base), millis(cap)).unwrap();
        backoff.with_jitter(Jitter::percent(jitter).unwrap())
    };
    let layer = RetryLayer::new()
        .with_seed(settings.seed)
        .with_max_attempts(settings.max_attempts)
        .unwrap()
        .with_backoff(backoff(settings.backoffs[0]))
        .with_throttled_backoff(backoff(settings.backoffs[1]))
        .with_max_retry_after(secs(settings.max_retry_after))
        .with_retry_rejected(settings.retry_rejected);
    let layer = match settings.budget {
        Some(capacity) => layer.with_budget(Budget::new().with_capacity(capacity).unwrap()),
        None => layer.without_budget(),
    };
    match settings.honours_key {
        true => layer.with_honoured_idempotency_key(IdempotencyKey::bare()),
        false => layer,
    }
}

/// Makes a call on a runtime with a paused clock.
fn call(layer: RetryLayer, responses: &[Scripted], settings: &Settings) -> EndedCall {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let start = Instant::now();
        let inner = ScriptedService::new(responses.iter().copied());
        let retry = layer
            .layer(AttemptTimeoutLayer::new(millis(settings.attempt_timeout)).unwrap().layer(inner.clone()));
        let mut request = request(settings.method, URI);
        let mut overrides = RetryOverride::new();
        if let Some(max_attempts) = settings.request_max_attempts {
            overrides = overrides.with_max_attempts(max_attempts).unwrap();
        }
        if settings.declared_idempotent {
            overrides = overrides.with_idempotent();
        }
        request.extensions_mut().insert(overrides);
        if let Some(left) = settings.request_deadline {
            request.extensions_mut().insert(Deadline(start + millis(left)));
        }
        let result = match settings.total_timeout {
            Some(total) => TotalTimeoutLayer::new(millis(total)).unwrap().layer(retry).oneshot(request).await,
            None => retry.oneshot(request).await,
        };
        let report = match &result {
            Ok(response) => Report::from_response(response),
            Err(error) => error.report(),
        };
        let report = report.unwrap();
        EndedCall {
            start,
            duration: start.elapsed(),
            seen: inner.seen(),
            attempts: report.attempts(),
            stop_reason: report.stop_reason(),
        }
    })
}

/// Returns the delay that `response` requests, in milliseconds.
fn requested_delay(response: Scripted) -> u64 {
    match response {
        RetryAfter(_, seconds) => seconds.parse::<u64>().unwrap() * 1_000,
        _ => 0,
    }
}

/// Returns the scripted response to the attempt with index `attempt`. The last response repeats.
fn response_to(responses: &[Scripted], attempt: usize) -> Scripted {
    responses[attempt.min(responses.len() - 1)]
}

fn is_throttled(response: Scripted) -> bool {
    matches!(response, Status(429) | RetryAfter(429, _))
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn attempts_delays_and_retry_costs_stay_within_the_configured_limits(responses in responses(), settings in settings()) {
        let ended = call(layer(&settings), &responses, &settings);
        let max_attempts = settings.request_max_attempts.unwrap_or(settings.max_attempts) as usize;
        prop_assert!((1..=max_attempts).contains(&ended.seen.len()));
        prop_assert_eq!(ended.attempts.len(), ended.seen.len());
        prop_assert!(ended.stop_reason.is_some());

        // No retry starts before the requested delay has passed, and no retry follows a requested delay that is too
        // long.
        for (index, pair) in ended.attempts.windows(2).enumerate() {
            let requested = requested_delay(response_to(&responses, index));
            let failed = pair[0].ended.unwrap();
            prop_assert!(ended.seen[index + 1].at - ended.start >= failed + millis(requested));
            prop_assert!(requested <= settings.max_retry_after * 1_000);
        }

        // The call ends before the earlier of its two deadlines.
        let deadline = settings.total_timeout.into_iter().chain(settings.request_deadline).min().map(millis);
        if let Some(deadline) = deadline {
            let delays: Duration = ended.attempts.iter().filter_map(|attempt| attempt.delay).sum();
            prop_assert!(delays < deadline);
            // A tokio timer expires at the next tick of 1 ms, so a call can end slightly after its deadline.
            prop_assert!(ended.duration < deadline + millis(2), "the call took {:?} with a deadline of {deadline:?}", ended.duration);
            for (index, seen) in ended.seen.iter().enumerate().skip(1) {
                let earlier = &ended.attempts[index - 1];
                let planned = earlier.ended.unwrap() + earlier.delay.unwrap();
                prop_assert!(planned < deadline && seen.at - ended.start < deadline + millis(2));
            }
        }

        // The retries of a call cost at most the capacity of the budget.
        let retries = || (0..ended.seen.len() - 1).map(|index| response_to(&responses, index));
        let spent: u32 = retries().map(|response| if is_throttled(response) { 5 } else { 14 }).sum();
        prop_assert!(settings.budget.is_none_or(|capacity| spent <= capacity), "the retries cost {spent}");
    }

    #[test]
    fn maybe_processed_request_is_retried_only_if_it_is_idempotent(
        responses in responses(),
        settings in settings(),
    ) {
        let ended = call(layer(&settings), &responses, &settings);
        let idempotent_method = ["GET", "PUT", "DELETE"].contains(&settings.method);
        let idempotent = idempotent_method || settings.honours_key || settings.declared_idempotent;
        let may_be_processed = |index: &usize| match response_to(&responses, *index) {
            Refused => false,
            response if is_throttled(response) => settings.retry_rejected == RetryRejected::Idempotent,
            _ => true,
        };
        let maybe_processed = (0..ended.seen.len()).filter(may_be_processed).count();
        prop_assert!(idempotent || maybe_processed <= 1, "the server may have processed {maybe_processed} attempts");
        let keys: Vec<_> = ended.seen.iter().map(|seen| seen.head.headers.get("idempotency-key")).collect();
        let needs_key = settings.honours_key && ["POST", "PATCH"].contains(&settings.method);
        prop_assert!(keys.iter().all(|key| key.is_some() == needs_key && *key == keys[0]), "{keys:?}");
        // A response that is not retryable is never retried, unless the attempt timed out before the response arrived.
        for index in 0..ended.seen.len() - 1 {
            let response = response_to(&responses, index);
            let not_retryable = matches!(response, Status(200 | 404 | 409 | 101) | Delayed(_, 200) | BeforeBody(200));
            prop_assert!(!not_retryable || ended.attempts[index].outcome == Some(Outcome::Timeout));
        }
    }
}
