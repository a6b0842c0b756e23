//! What a call pays for each layer, and for the whole preset stack, over a service that does nothing; for the retry layer
//! beside `tower::retry`, alone and in the same place of the stack; and for request id, log and key beside tower-http's,
//! where nobody listens and where every line is written to a sink.
//!
//! `cargo bench --bench overhead` prints nanoseconds and allocations a call. The rows take turns: each round measures
//! every row for a moment, so that whatever else the machine does falls on all of them. What is printed is the median
//! of the rounds, a difference or a ratio that of the rounds' own. `-- --quick` runs few rounds, to see that it works.
//!
//! The last table is of calls that fail in their first attempt and wait for nothing. With a real clock that can't be
//! measured: tokio rounds every sleep up to its tick of 1 ms, and a back-off of 1 ns would be a thousand times the price
//! of the retry. So these rows run on a paused clock that stands exactly on a tick, where a sleep of zero has ended when
//! it is first polled: its timer is made and asked, but nobody waits.

mod beside;

use std::{
    cell::Cell,
    convert::Infallible,
    error::Error,
    future::{Future, Ready, ready},
    hint::black_box,
    iter,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use tokio::runtime::Runtime;
use tower::{
    Layer, Service, ServiceBuilder,
    retry::{
        Policy,
        backoff::{Backoff, ExponentialBackoff, ExponentialBackoffMaker, MakeBackoff},
    },
    util::rng::HasherRng,
};
use tower_outbound::{
    ApiKey, Quota,
    attempt::AttemptLayer,
    auth::{BearerAuthLayer, Origin},
    limit::{RateLimitLayer, TokenBucket},
    preset::Preset,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::TimeoutLayer,
};

type Body = Empty<Bytes>;
type BoxError = Box<dyn Error + Send + Sync>;

/// Answers at once, whatever the body.
#[derive(Debug, Clone)]
struct NoOp;

impl<B> Service<Request<B>> for NoOp {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        black_box(&request);
        ready(Ok(Response::new(Body::new())))
    }
}

/// Answers 503 and 200 in turn.
#[derive(Debug, Clone, Default)]
struct EverySecond {
    failed: Rc<Cell<bool>>,
}

impl<B> Service<Request<B>> for EverySecond {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        black_box(&request);
        let mut response = Response::new(Body::new());
        if !self.failed.replace(!self.failed.get()) {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        ready(Ok(response))
    }
}

/// What `tower::retry` leaves to its user, cut to what our layer does: what it sends again, how often, how late.
#[derive(Debug, Clone)]
struct Attempts {
    left: u32,
    backoff: ExponentialBackoff,
}

impl Attempts {
    fn new(backoff: &mut ExponentialBackoffMaker) -> Self {
        // The first is not counted.
        Self { left: 2, backoff: backoff.make_backoff() }
    }
}

impl<B: Clone, R, E> Policy<Request<B>, Response<R>, E> for Attempts {
    type Future = <ExponentialBackoff as Backoff>::Future;

    fn retry(&mut self, _: &mut Request<B>, result: &mut Result<Response<R>, E>) -> Option<Self::Future> {
        let failed = result
            .as_ref()
            .map_or(true, |response| matches!(response.status().as_u16(), 408 | 429 | 500 | 502 | 503 | 504));
        self.left = self.left.checked_sub(1).filter(|_| failed)?;
        Some(self.backoff.next_backoff())
    }

    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        request.method().is_idempotent().then(|| request.clone())
    }
}

fn tower_retry(policy: Attempts) -> tower::retry::RetryLayer<Attempts> {
    tower::retry::RetryLayer::new(policy)
}

struct Settings {
    rounds: usize,
    /// Of each row in a round.
    calls: usize,
}

/// Makes so many calls.
type Work = Box<dyn FnMut(usize) -> Result<(), BoxError>>;

struct Row {
    name: &'static str,
    /// The row of somebody else's layers that do the same work.
    peer: Option<&'static str>,
    work: Work,
    /// Nanoseconds a call, by round.
    rounds: Vec<f64>,
}

impl Row {
    fn new<S, R, E>(name: &'static str, mut service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<R>, Error = E> + 'static,
        E: Into<BoxError>,
    {
        let work = move |calls| (0..calls).try_for_each(|_| call(&mut service));
        Self { name, peer: None, work: Box::new(work), rounds: Vec::new() }
    }

    fn beside(self, peer: &'static str) -> Self {
        Self { peer: Some(peer), ..self }
    }

    /// On the runtime's clock.
    fn on(mut self, runtime: &Rc<Runtime>) -> Self {
        let runtime = Rc::clone(runtime);
        let work = move |calls| {
            let _entered = runtime.enter();
            (self.work)(calls)
        };
        Self { work: Box::new(work), ..self }
    }

    #[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
    fn round(&mut self, calls: usize) -> Result<f64, BoxError> {
        let start = std::time::Instant::now();
        (self.work)(calls)?;
        Ok(start.elapsed().as_nanos() as f64 / calls as f64)
    }

    /// Allocations and bytes a call.
    fn heap(&mut self) -> Result<(f64, f64), BoxError> {
        let mut outcome = Ok(());
        let heap = allocation_counter::measure(|| outcome = (self.work)(1_000));
        outcome?;
        Ok((heap.count_total as f64 / 1e3, heap.bytes_total as f64 / 1e3))
    }
}

fn request() -> Result<Request<Body>, http::Error> {
    // A caller's request is seldom bare: one header, so that the map is there.
    Request::get("https://api.example.com/v1/resources")
        .header("accept", "application/json")
        .body(Body::new())
}

fn call<S, R, E>(service: &mut S) -> Result<(), BoxError>
where
    S: Service<Request<Body>, Response = Response<R>, Error = E>,
    E: Into<BoxError>,
{
    let cx = &mut Context::from_waker(Waker::noop());
    let ready = service.poll_ready(cx).map_err(Into::into)?;
    if ready.is_pending() {
        return Err("the service was not ready".into());
    }
    match pin!(service.call(request()?)).poll(cx) {
        Poll::Ready(response) => {
            let response = response.map_err(Into::into)?;
            if black_box(&response).status() != StatusCode::OK {
                return Err("the call failed in the end".into());
            }
            Ok(())
        }
        Poll::Pending => Err("the call had to wait".into()),
    }
}

const TOWERS: &str = "tower::retry (3 attempts, its ExponentialBackoff)";
const FOUR_WITH_TOWERS: &str = "the four layers, tower::retry for ours";

fn rows() -> Result<Vec<Row>, BoxError> {
    // So large that nothing waits: the price of the permit is measured, not the wait.
    let quota = Quota::new(4_000_000_000, Duration::from_secs(1))?.with_burst(2_000_000_000)?;
    let limit = || RateLimitLayer::new(TokenBucket::new(quota));
    let key = ApiKey::new("s3cret")?;
    let auth = BearerAuthLayer::new(key.clone(), Origin::parse("https://api.example.com")?)?;
    let total = TimeoutLayer::total(Duration::from_secs(60))?;
    let attempt = TimeoutLayer::per_attempt(Duration::from_secs(10))?;
    let preset =
        Preset::new("bench", "https://api.example.com")?.with_api_key(key).with_quota(quota).layer()?;
    let four = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(limit())
        .layer(auth.clone());
    let theirs = || tower_retry(Attempts::new(&mut ExponentialBackoffMaker::default()));
    let four_with_theirs =
        ServiceBuilder::new().layer(RequestIdLayer::new()).layer(theirs()).layer(limit()).layer(auth.clone());

    Ok(vec![
        Row::new("bare service", NoOp),
        Row::new("auth", auth.layer(NoOp)),
        Row::new("rate limit", limit().layer(NoOp)),
        Row::new(TOWERS, theirs().layer(NoOp)),
        Row::new("retry", RetryLayer::new().layer(NoOp)).beside(TOWERS),
        Row::new("request id and log", RequestIdLayer::new().layer(NoOp)),
        Row::new("attempt's span", AttemptLayer::new().layer(NoOp)),
        Row::new("total deadline", total.layer(NoOp)),
        Row::new("attempt timeout", attempt.layer(NoOp)),
        Row::new(FOUR_WITH_TOWERS, four_with_theirs.service(NoOp)),
        Row::new("the four layers", four.service(NoOp)).beside(FOUR_WITH_TOWERS),
        Row::new("full preset stack", preset.layer(NoOp)),
    ])
}

fn rows_of_a_retry() -> Result<Vec<Row>, BoxError> {
    // Never run, so that its clock stays where it starts, on a tick.
    let paused =
        Rc::new(tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?);
    let mut zero =
        ExponentialBackoffMaker::new(Duration::ZERO, Duration::from_secs(1), 0.99, HasherRng::default())
            .map_err(|error| error.to_string())?;
    let at_once = RetryLayer::new().with_schedule(|| iter::repeat(Duration::ZERO));

    Ok(vec![
        Row::new("bare service, one call", NoOp).on(&paused),
        Row::new(TOWERS, tower_retry(Attempts::new(&mut zero)).layer(EverySecond::default())).on(&paused),
        Row::new("retry", at_once.layer(EverySecond::default())).on(&paused).beside(TOWERS),
    ])
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures the rows turn by turn, and prints them against the first.
fn compare(title: &str, mut rows: Vec<Row>, settings: &Settings) -> Result<(), BoxError> {
    for round in 0..=settings.rounds {
        for row in &mut rows {
            let nanos = row.round(settings.calls)?;
            // The first round warms up.
            if round > 0 {
                row.rounds.push(nanos);
            }
        }
    }
    let heaps = rows.iter_mut().map(Row::heap).collect::<Result<Vec<_>, _>>()?;

    println!("### {title}");
    println!();
    println!(
        "| service | ns a call | over bare, ns | × bare | × peer | allocations over bare | bytes over bare |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let bare = &rows[0].rounds;
    for (row, heap) in rows.iter().zip(&heaps) {
        let against = |other: &[f64], of: fn(f64, f64) -> f64| {
            median(row.rounds.iter().zip(other).map(|(own, other)| of(*own, *other)))
        };
        let peer = rows.iter().find(|other| Some(other.name) == row.peer);
        let peer = peer.map(|peer| format!("{:.2}", against(&peer.rounds, |own, peer| own / peer)));
        println!(
            "| {} | {:.0} | {:+.0} | {:.2} | {} | {:+.1} | {:+.0} |",
            row.name,
            median(row.rounds.iter().copied()),
            against(bare, |own, bare| own - bare),
            against(bare, |own, bare| own / bare),
            peer.as_deref().unwrap_or("–"),
            heap.0 - heaps[0].0,
            heap.1 - heaps[0].1,
        );
    }
    println!();
    Ok(())
}

fn main() -> Result<(), BoxError> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let settings =
        if quick { Settings { rounds: 5, calls: 1_000 } } else { Settings { rounds: 101, calls: 10_000 } };
    println!(
        "one thread; no subscriber where none is named; medians of {} rounds of {} calls, turn by turn",
        settings.rounds, settings.calls
    );
    println!();
    compare("a call that succeeds", rows()?, &settings)?;
    compare("beside tower-http, no subscriber", beside::rows()?, &settings)?;
    beside::at_info(|| compare("beside tower-http, INFO to a sink", beside::rows()?, &settings))?;
    #[cfg(feature = "metrics")]
    metered(|| compare("a call that succeeds, metrics to Prometheus' recorder", rows()?, &settings))?;
    // Made only now: once a clock was paused, every reading of tokio's takes longer.
    compare("503, then 200, without a back-off", rows_of_a_retry()?, &settings)
}

/// Runs `work` with the metrics on; they can't be switched off again, but without a recorder they cost little.
#[cfg(feature = "metrics")]
fn metered<T>(work: impl FnOnce() -> T) -> T {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    tower_outbound::adapter::metrics::enable();
    metrics::with_local_recorder(&recorder, work)
}
