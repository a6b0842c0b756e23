//! Tests tower-resilience's circuit breaker, and the recipe for it in the guide's page `other_layers`.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::join_all;
use http::{Method, Response};
use tokio::{net::TcpSocket, time::Instant};
use tower::{BoxError, ServiceBuilder, limit::GlobalConcurrencyLimitLayer};
use tower_outbound::{
    Body, Client, Error, ErrorKind, ExponentialBackoff, Quota, Report,
    call::{Outcome, StopReason},
    client::RequestBuilder,
    error::DeliveryError,
    limit::LocalLimiter,
    retry::RetryLayer,
    stack::StackBuilder,
    test_util::ScriptedResponse,
};
use tower_resilience_circuitbreaker::{
    CircuitBreakerConfigBuilder, CircuitBreakerConfigError, CircuitBreakerError, CircuitBreakerLayer,
    CircuitState, SlidingWindowType,
};

use super::{
    URI, outcomes,
    support::{Scripted::*, ScriptedService},
};

type Settings = CircuitBreakerConfigBuilder;
type Change = fn(Settings) -> Settings;

/// Converts the breaker's error: an open circuit is marked, and any other error is returned as it is.
fn unwrap_breaker<E: Into<BoxError>>(error: CircuitBreakerError<E>) -> BoxError {
    match error {
        CircuitBreakerError::OpenCircuit => DeliveryError::circuit_open("too many failures").into(),
        CircuitBreakerError::Inner(error) => error.into(),
    }
}

/// Returns whether the service has failed. A 429 is no failure, and neither is a refusal of the limiter, unless an
/// attempt failed before.
fn is_failure(result: &Result<Response<Body>, Error>) -> bool {
    match result {
        Ok(response) => response.status().is_server_error(),
        Err(error) => error.is_service() || error.is_timeout() || error.may_have_been_processed(),
    }
}

/// Adds a breaker, above which at most `calls` calls run at once.
fn with_breaker(builder: StackBuilder, calls: usize) -> Result<StackBuilder, CircuitBreakerConfigError> {
    let breaker = CircuitBreakerLayer::builder()
        .failure_classifier(is_failure)
        .consecutive_failures(3)
        .wait_duration_in_open(Duration::from_secs(30))
        .permitted_calls_in_half_open(1)
        .build()?;
    let limit = GlobalConcurrencyLimitLayer::new(calls);
    Ok(builder.with_outer_layer(ServiceBuilder::new().layer(limit).map_err(unwrap_breaker).layer(breaker)))
}

/// Returns a limiter that counts its permits, and whose quota no test reaches.
fn counting() -> LocalLimiter {
    LocalLimiter::sliding_window(Quota::per_second(1_000_000).unwrap())
}

/// Returns a retry layer with three attempts and a backoff of at most 1 ms.
fn quick_retry() -> RetryLayer {
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(1)).unwrap();
    RetryLayer::new().with_backoff(backoff)
}

fn api(limiter: &LocalLimiter) -> StackBuilder {
    Client::builder(URI).unwrap().without_credential().with_limiter(limiter.clone())
}

#[tokio::test(start_paused = true)]
async fn recipe_makes_9_attempts_in_1_000_calls_of_an_outage_and_then_fails_immediately() {
    let (service, limiter) = (ScriptedService::new([Refused]), counting());
    let client = with_breaker(api(&limiter), 4).unwrap().client_with_service(service.clone()).unwrap();
    for call in 0..1_000 {
        let start = Instant::now();
        let error = client.get("/v1").await.unwrap_err();
        if call < 3 {
            assert_eq!(
                (error.kind(), error.report().unwrap().attempt_count()),
                (ErrorKind::ConnectRefused, 3)
            );
        } else {
            assert_eq!((error.kind(), start.elapsed()), (ErrorKind::CircuitOpen, Duration::ZERO), "{call}");
            assert!(!error.may_have_been_processed());
        }
    }
    assert_eq!((service.calls(), limiter.snapshot().granted), (9, 9));
}

/// Returns how many attempts the calls have made, each of which fails.
async fn attempts(calls: impl IntoIterator<Item = RequestBuilder>) -> usize {
    let failed =
        join_all(calls.into_iter().map(RequestBuilder::send)).await.into_iter().map(Result::unwrap_err);
    failed.map(|error| error.report().map_or(0, Report::attempt_count)).sum()
}

/// Sends 1,000 calls at once to a TCP port that refuses connections, and then 1,000 calls in a row.
#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "the test measures real time")]
async fn recipe_makes_at_most_20_attempts_in_1_000_calls_at_once_and_then_fails_within_1_ms() {
    // A bound socket that does not listen refuses connections.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let limiter = counting();
    let builder = Client::builder(format!("http://{}", socket.local_addr().unwrap())).unwrap();
    let builder = builder.without_credential().with_limiter(limiter.clone()).with_retry(quick_retry());
    let client = with_breaker(builder, 4).unwrap().client().unwrap();

    let attempts = attempts((0..1_000).map(|_| client.get("/v1"))).await;
    assert!((9..=20).contains(&attempts), "{attempts} attempts");
    assert_eq!(limiter.snapshot().granted, u64::try_from(attempts).unwrap());

    let mut times = Vec::new();
    for _ in 0..1_000 {
        let start = std::time::Instant::now();
        let error = client.get("/v1").await.unwrap_err();
        times.push(start.elapsed());
        assert_eq!(error.kind(), ErrorKind::CircuitOpen);
    }
    times.sort_unstable();
    assert!(times[500] <= Duration::from_millis(1), "median {:?}", times[500]);
}

/// Sends calls through a breaker, each with the result that the test chooses, and records the states of the circuit.
struct Watched {
    client: Client,
    states: Arc<Mutex<Vec<(usize, CircuitState)>>>,
    sent: Arc<AtomicUsize>,
}

/// The result of a call that the limiter refuses.
const REFUSAL: u16 = 0;

impl Watched {
    /// Watches a breaker with these settings and the classifier of the recipe.
    fn new(settings: impl FnOnce(Settings) -> Settings) -> Self {
        let (states, sent) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicUsize>::default());
        let (record, number) = (Arc::clone(&states), Arc::clone(&sent));
        let breaker = settings(CircuitBreakerLayer::builder())
            .on_state_transition(move |_, to| record.lock().unwrap().push((number.load(SeqCst), to)))
            .failure_classifier(is_failure)
            .build()
            .unwrap();
        let layer = ServiceBuilder::new().map_err(unwrap_breaker).layer(breaker);
        let service = ScriptedService::from_fn(|seen| {
            ScriptedResponse::status(seen.head.uri.path().trim_start_matches("/v1/").parse().unwrap())
        });
        let builder = api(&counting()).with_max_attempts(1).with_outer_layer(layer);
        Self { client: builder.client_with_service(service).unwrap(), states, sent }
    }

    async fn send(&self, results: &[u16]) {
        for status in results {
            self.sent.fetch_add(1, SeqCst);
            let call = match *status {
                // The cost is above the burst of the quota.
                REFUSAL => self.client.get("/200").cost(2_000_000),
                status => self.client.get(format!("/{status}")),
            };
            match call.await {
                Ok(response) => assert_eq!(response.status(), *status),
                Err(error) => assert_eq!((*status, error.kind()), (REFUSAL, ErrorKind::TooCostly)),
            }
        }
    }

    /// Returns each change of the state, with the number of the call that caused it.
    fn changes(&self) -> Vec<(usize, CircuitState)> {
        self.states.lock().unwrap().clone()
    }
}

/// Each case is a statement of the guide's table, or about the results that count as a success.
#[tokio::test(start_paused = true)]
async fn each_setting_of_the_guides_table_opens_the_circuit_as_documented() {
    let in_a_row = |settings: Settings| settings.consecutive_failures(3);
    let rate = |settings: Settings| {
        settings.failure_rate_threshold(0.5).sliding_window_size(10).minimum_number_of_calls(3)
    };
    let hour = |settings: Settings| {
        let settings = settings.sliding_window_type(SlidingWindowType::TimeBased).minimum_number_of_calls(3);
        settings.failure_rate_threshold(0.5).sliding_window_duration(Duration::from_secs(3_600))
    };
    let after = |successes: usize, failures: usize| [vec![200; successes], vec![500; failures]].concat();
    let cases: [(&str, Change, Vec<u16>, Option<usize>); 11] = [
        ("three failures in a row", in_a_row, vec![500; 3], Some(3)),
        ("a success resets the count", in_a_row, vec![500, 500, 200, 500, 500, 500], Some(6)),
        ("a 429 resets the count", in_a_row, vec![500, 500, 429, 500, 500, 500], Some(6)),
        ("a 404 resets the count", in_a_row, vec![500, 500, 404, 500, 500, 500], Some(6)),
        ("a refusal resets the count", in_a_row, vec![500, 500, REFUSAL, 500, 500, 500], Some(6)),
        ("a rate opens after 10 calls at the earliest", rate, vec![500; 10], Some(10)),
        ("a rate below the threshold", rate, after(6, 5), None),
        ("the window of a number of calls does not slide", rate, after(1_000, 1_000), Some(2_000)),
        ("a window of time opens after three calls at the earliest", hour, vec![500; 3], Some(3)),
        ("a window of time counts successes", hour, after(2, 2), Some(4)),
        ("a window of time below the threshold", hour, after(4, 3), None),
    ];
    for (name, settings, results, opened) in cases {
        let watched = Watched::new(settings);
        watched.send(&results).await;
        let expected: Vec<_> = opened.map(|call| (call, CircuitState::Open)).into_iter().collect();
        assert_eq!(watched.changes(), expected, "{name}");
    }
}

/// The breaker reads the system's clock, which a test cannot pause.
#[tokio::test]
async fn window_of_time_forgets_older_calls() {
    const WINDOW: Duration = Duration::from_millis(300);
    let watched = Watched::new(|settings| {
        let settings = settings.sliding_window_type(SlidingWindowType::TimeBased).minimum_number_of_calls(1);
        settings.failure_rate_threshold(0.5).sliding_window_duration(WINDOW)
    });
    watched.send(&[200; 10]).await;
    tokio::time::sleep(WINDOW).await;
    watched.send(&[500]).await;
    assert_eq!(watched.changes(), [(11, CircuitState::Open)]);
}

/// The circuit is half open at the next call, because it stays open for 1 ns of the system's clock.
#[tokio::test(start_paused = true)]
async fn half_open_circuit_closes_after_any_result_that_is_no_failure() {
    for (result, state) in [
        (500, CircuitState::Open),
        (200, CircuitState::Closed),
        (404, CircuitState::Closed),
        (429, CircuitState::Closed),
        (REFUSAL, CircuitState::Closed),
    ] {
        let watched = Watched::new(|settings| {
            let settings = settings.consecutive_failures(3).permitted_calls_in_half_open(1);
            settings.wait_duration_in_open(Duration::from_nanos(1))
        });
        watched.send(&[500, 500, 500, result]).await;
        let expected = [(3, CircuitState::Open), (4, CircuitState::HalfOpen), (4, state)];
        assert_eq!(watched.changes(), expected, "{result}");
    }
}

#[tokio::test(start_paused = true)]
async fn open_circuit_below_the_stack_costs_one_permit_and_no_retry() {
    let (service, limiter) = (ScriptedService::new([Refused]), counting());
    let breaker = CircuitBreakerLayer::builder().consecutive_failures(3).build().unwrap();
    let layer = ServiceBuilder::new().map_err(unwrap_breaker).layer(breaker);
    let client = api(&limiter).with_transport_layer(layer).client_with_service(service.clone()).unwrap();
    let error = client.get("/v1").await.unwrap_err();
    assert_eq!((error.kind(), service.calls()), (ErrorKind::ConnectRefused, 3));
    for method in [Method::GET, Method::POST] {
        let (before, start) = (limiter.snapshot().granted, Instant::now());
        let error = client.request(method, "/v1").await.unwrap_err();
        let report = error.report().unwrap();
        assert_eq!((error.kind(), outcomes(report)), (ErrorKind::CircuitOpen, vec![Outcome::NotSent]));
        assert_eq!(report.stop_reason(), Some(StopReason::NotRetryable));
        assert!(start.elapsed().is_zero() && !error.may_have_been_processed());
        assert_eq!((limiter.snapshot().granted - before, service.calls()), (1, 3));
    }
}
