//! The guarantees for any sequence of outcomes with any settings.

use std::{
    io::ErrorKind::{BrokenPipe, ConnectionReset},
    time::Duration,
};

use proptest::{prelude::*, sample::select};
use tokio::{runtime::Builder, time::Instant};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    ExponentialBackoff, Jitter, Report,
    call::{AttemptReport, Deadline, DelayReason, StopReason},
    retry::{Budget, IdempotencyKey, RetryLayer, RetryOverride},
    timeout::TimeoutLayer,
};

use super::{
    URI,
    support::cases::cases,
    support::{
        Scripted::{self, *},
        ScriptedService, Seen, millis, request, secs,
    },
};

#[derive(Debug, Clone)]
struct Settings {
    seed: u64,
    method: &'static str,
    max_attempts: u32,
    own_attempts: Option<u32>,
    keyed: bool,
    idempotent: bool,
    /// Base, cap and jitter in percent, of the transient and of the throttled backoff.
    backoffs: [(u64, u64, u8); 2],
    max_ask: u64,
    budget: Option<u32>,
    /// The deadlines of the layer and of the request, in milliseconds.
    total: Option<u64>,
    own: Option<u64>,
    per_attempt: u64,
}

/// The result of a call.
struct Came {
    /// From the start of the call to its end.
    took: Duration,
    seen: Vec<Seen>,
    attempts: Vec<AttemptReport>,
    ended: Option<StopReason>,
    start: Instant,
}

fn answers() -> impl Strategy<Value = Vec<Scripted>> {
    let asks = select(vec!["0", "1", "3", "7", "30"]);
    let answer = prop_oneof![
        2 => select(vec![200, 404, 409, 500, 503, 429, 101]).prop_map(Status),
        3 => select(vec![500, 503, 429, 429, 408]).prop_map(Status),
        3 => (select(vec![503, 429, 500]), asks).prop_map(|(status, ask)| RetryAfter(status, ask)),
        2 => Just(Refused),
        2 => select(vec![ConnectionReset, BrokenPipe]).prop_map(Io),
        1 => Just(NoResponse),
        1 => (1..3_000_u64, select(vec![200, 503])).prop_map(|(after, status)| Delayed(after, status)),
        1 => select(vec![200, 503]).prop_map(BeforeBody),
    ];
    prop::collection::vec(answer, 1..10)
}

fn backoff() -> impl Strategy<Value = (u64, u64, u8)> {
    (1..2_000_u64, 0..10_000_u64, 0..=100_u8).prop_map(|(base, more, jitter)| (base, base + more, jitter))
}

fn settings() -> impl Strategy<Value = Settings> {
    let method = select(vec!["GET", "PUT", "DELETE", "POST", "POST", "PATCH"]);
    let deadline = || prop::option::of(1..30_000_u64);
    let (budget, rare) = (prop::option::of(14..60_u32), || prop::bool::weighted(0.2));
    (
        (any::<u64>(), method, 1..8_u32, prop::option::weighted(0.2, 1..8_u32), rare(), rare()),
        ([backoff(), backoff()], 0..40_u64, budget, deadline(), deadline(), 1..5_000_u64),
    )
        .prop_map(|((seed, method, max_attempts, own_attempts, keyed, idempotent), rest)| {
            let (backoffs, max_ask, budget, total, own, per_attempt) = rest;
            Settings {
                seed,
                method,
                max_attempts,
                own_attempts,
                keyed,
                idempotent,
                backoffs,
                max_ask,
                budget,
                total,
                own,
                per_attempt,
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
        .with_max_retry_after(secs(settings.max_ask));
    let layer = match settings.budget {
        Some(capacity) => layer.with_budget(Budget::new().with_capacity(capacity).unwrap()),
        None => layer.without_budget(),
    };
    match settings.keyed {
        true => layer.with_honoured_idempotency_key(IdempotencyKey::bare()),
        false => layer,
    }
}

fn play(layer: RetryLayer, answers: &[Scripted], settings: &Settings) -> Came {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let start = Instant::now();
        let probe = ScriptedService::new(answers.iter().copied());
        let retry = layer
            .layer(TimeoutLayer::per_attempt(millis(settings.per_attempt)).unwrap().layer(probe.clone()));
        let mut request = request(settings.method, URI);
        let mut own = RetryOverride::new();
        if let Some(most) = settings.own_attempts {
            own = own.with_max_attempts(most).unwrap();
        }
        if settings.idempotent {
            own = own.with_idempotent();
        }
        request.extensions_mut().insert(own);
        if let Some(left) = settings.own {
            request.extensions_mut().insert(Deadline(start + millis(left)));
        }
        let result = match settings.total {
            Some(total) => TimeoutLayer::total(millis(total)).unwrap().layer(retry).oneshot(request).await,
            None => retry.oneshot(request).await,
        };
        let report = match &result {
            Ok(response) => Report::from_response(response),
            Err(error) => error.report(),
        };
        let report = report.unwrap();
        Came {
            took: start.elapsed(),
            seen: probe.seen(),
            attempts: report.attempts(),
            ended: report.stop_reason(),
            start,
        }
    })
}

/// Returns the delay that the server requested, in milliseconds.
fn ask(answer: Scripted) -> u64 {
    match answer {
        RetryAfter(_, seconds) => seconds.parse::<u64>().unwrap() * 1_000,
        _ => 0,
    }
}

fn given(answers: &[Scripted], attempt: usize) -> Scripted {
    answers[attempt.min(answers.len() - 1)]
}

fn is_throttle(answer: Scripted) -> bool {
    matches!(answer, Status(429) | RetryAfter(429, _))
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn attempts_and_waits_stay_within_the_settings(answers in answers(), settings in settings()) {
        let came = play(layer(&settings), &answers, &settings);
        let most = settings.own_attempts.unwrap_or(settings.max_attempts) as usize;
        prop_assert!((1..=most).contains(&came.seen.len()));
        prop_assert_eq!(came.attempts.len(), came.seen.len());
        prop_assert!(came.ended.is_some());

        // No attempt starts before the requested delay, or after a requested delay that is too long.
        for (index, pair) in came.attempts.windows(2).enumerate() {
            let asked = ask(given(&answers, index));
            let failed = pair[0].ended.unwrap();
            prop_assert!(came.seen[index + 1].at - came.start >= failed + millis(asked));
            prop_assert!(asked <= settings.max_ask * 1_000);
        }

        // The call ends within the earlier deadline.
        let deadline = settings.total.into_iter().chain(settings.own).min().map(millis);
        if let Some(deadline) = deadline {
            let waits: Duration = came.attempts.iter().filter_map(|attempt| attempt.delay).sum();
            prop_assert!(waits < deadline);
            // A timer fires in the tick of a millisecond after its time.
            prop_assert!(came.took < deadline + millis(2), "{:?} of {deadline:?}", came.took);
            for (index, seen) in came.seen.iter().enumerate().skip(1) {
                let planned = came.attempts[index - 1].ended.unwrap() + came.attempts[index - 1].delay.unwrap();
                prop_assert!(planned < deadline && seen.at - came.start < deadline + millis(2));
            }
        }

        // The budget is never overdrawn.
        let retries = || (0..came.seen.len() - 1).map(|index| given(&answers, index));
        let spent: u32 = retries().map(|answer| if is_throttle(answer) { 5 } else { 14 }).sum();
        prop_assert!(settings.budget.is_none_or(|capacity| spent <= capacity), "{spent} spent");
    }

    #[test]
    fn retries_maybe_processed_requests_only_if_they_are_idempotent(
        answers in answers(),
        settings in settings(),
    ) {
        let came = play(layer(&settings), &answers, &settings);
        let harmless = ["GET", "PUT", "DELETE"].contains(&settings.method) || settings.keyed || settings.idempotent;
        let sent = (0..came.seen.len()).filter(|index| !matches!(given(&answers, *index), Refused)).count();
        prop_assert!(harmless || sent <= 1, "{sent} times");
        let keys: Vec<_> = came.seen.iter().map(|seen| seen.head.headers.get("idempotency-key")).collect();
        let needed = settings.keyed && ["POST", "PATCH"].contains(&settings.method);
        prop_assert!(keys.iter().all(|key| key.is_some() == needed && *key == keys[0]), "{keys:?}");
        // No attempt follows a success or a response that is not retryable.
        for index in 0..came.seen.len() - 1 {
            prop_assert!(!matches!(given(&answers, index), Status(200 | 404 | 409 | 101) | Delayed(_, 200) | BeforeBody(200)) || came.attempts[index].outcome == Some(tower_outbound::call::Outcome::Timeout));
        }
    }

    #[test]
    fn each_delay_is_within_the_bounds_of_its_reason(answers in answers(), settings in settings()) {
        let came = play(layer(&settings), &answers, &settings);
        for (index, attempt) in came.attempts.iter().enumerate() {
            let Some(delay) = attempt.delay else { continue };
            let answer = given(&answers, index);
            let (base, cap, jitter) = settings.backoffs[usize::from(is_throttle(answer))];
            let ceiling = base.saturating_mul(1 << index).min(cap) as f64 / 1e3;
            let (spread, asked) = (ceiling * f64::from(jitter) / 100.0, ask(answer) as f64 / 1e3);
            let bounds = match attempt.delay_reason.unwrap() {
                DelayReason::Requested => asked..=asked + spread,
                reason => {
                    prop_assert_eq!(reason == DelayReason::Throttled, is_throttle(answer));
                    (ceiling - spread).max(asked)..=ceiling
                }
            };
            // Rounding may add a nanosecond.
            let (delay, from, to) = (delay.as_secs_f64(), bounds.start() - 1e-9, bounds.end() + 1e-9);
            prop_assert!((from..=to).contains(&delay), "{delay} not in {bounds:?}");
        }
    }

    #[test]
    fn uses_the_delays_of_a_custom_backoff_exactly(
        answers in answers(),
        settings in settings(),
        steps in prop::collection::vec(0..5_000_u64, 0..6),
        hot in prop::collection::vec(0..5_000_u64, 0..6),
    ) {
        let (mine, theirs) = (steps.clone(), hot.clone());
        let layer = layer(&settings)
            .with_custom_backoff(move || mine.clone().into_iter().map(millis))
            .with_custom_throttled_backoff(move || theirs.clone().into_iter().map(millis));
        let came = play(layer, &answers, &settings);
        let (mut steps, mut hot) = (steps.into_iter(), hot.into_iter());
        for (index, attempt) in came.attempts.iter().enumerate() {
            let Some(delay) = attempt.delay else { continue };
            let answer = given(&answers, index);
            let step = if is_throttle(answer) { hot.next() } else { steps.next() };
            let (step, asked) = (millis(step.expect("no attempt after the last step")), millis(ask(answer)));
            match attempt.delay_reason.unwrap() {
                DelayReason::Requested => prop_assert!(asked > step && (asked..=asked + step / 2).contains(&delay)),
                _ => prop_assert!(delay == step && asked <= step),
            }
        }
    }
}
