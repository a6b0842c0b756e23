//! What a call pays for each layer, and for the whole preset stack, over a service that does nothing; for the retry layer
//! beside `tower::retry`, alone and in the same place of the stack; and for request id, log and key beside tower-http's,
//! where nobody listens and where every line is written to a sink.
//!
//! `cargo bench --bench overhead` prints nanoseconds and allocations a call. The rows take turns: each round measures
//! every row for a moment, so that whatever else the machine does falls on all of them. What is printed is the median
//! of the rounds, a difference or a ratio that of the rounds' own. After `--`:
//!
//! - `--quick` runs few rounds, to see that it works;
//! - `--only SECTION` runs one of `layers`, `tower-http`, `tower-http-info`, `metrics`, `retry`;
//! - `--json PATH`, `--svg PATH` and `--markdown PATH` write the figures, a plot and the tables as well, see ../README.md.
//!
//! Whole stacks beside ours are in `benches/stacks.rs`: their crates are not built for this crate's tests.
//!
//! `retry` is of calls that fail in their first attempt and wait for nothing. With a real clock that can't be
//! measured: tokio rounds every sleep up to its tick of 1 ms, and a back-off of 1 ns would be a thousand times the price
//! of the retry. So these rows run on a paused clock that stands exactly on a tick, where a sleep of zero has ended when
//! it is first polled: its timer is made and asked, but nobody waits.

mod beside;
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the other benches have it as a library")]
#[path = "../shared/mod.rs"]
mod shared;

use std::{cell::Cell, convert::Infallible, iter, rc::Rc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, retry::backoff::ExponentialBackoffMaker, util::rng::HasherRng,
};
use tower_outbound::{
    ApiKey, Quota,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, Origin},
    limit::{RateLimitLayer, TokenBucket},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    stack::StackBuilder,
    timeout::TimeoutLayer,
};

use self::shared::{
    Answers, Arguments, BoxError, Call, Calls, Ratio, Report, at_info, compare_calls, tower_retry,
};

/// Answers 503 and 200 in turn.
fn every_second<B>() -> impl Service<Request<B>, Response = Response<Empty<Bytes>>, Error = Infallible> + Clone
{
    let failed = Rc::new(Cell::new(false));
    ServiceExt::<Request<B>>::map_response(Answers, move |mut response: Response<_>| {
        if !failed.replace(!failed.get()) {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    })
}

const TOWERS: &str = "tower::retry (3 attempts, its ExponentialBackoff)";
const FOUR_WITH_TOWERS: &str = "the four layers, tower::retry for ours";

fn rows() -> Result<Vec<Call>, BoxError> {
    // So large that nothing waits: the price of the permit is measured, not the wait.
    let quota =
        Quota::new(4_000_000_000, Duration::from_secs(1))?.with_burst(2_000_000_000)?.without_margin();
    let limit = || RateLimitLayer::new(TokenBucket::new(quota));
    let key = ApiKey::new("s3cret")?;
    let auth = AuthLayer::new(key.clone(), Origin::parse("https://api.example.com")?)?;
    let total = TimeoutLayer::total(Duration::from_secs(60))?;
    let attempt = TimeoutLayer::per_attempt(Duration::from_secs(10))?;
    let preset = StackBuilder::new("https://api.example.com")?
        .with_name("bench")
        .with_api_key(key)
        .with_quota(quota)
        .layer()?;
    let four = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(limit())
        .layer(auth.clone());
    let theirs = || tower_retry(None);
    let four_with_theirs =
        ServiceBuilder::new().layer(RequestIdLayer::new()).layer(theirs()).layer(limit()).layer(auth.clone());

    Ok(vec![
        Call::new("bare service", Answers),
        Call::new("auth", auth.layer(Answers)),
        Call::new("rate limit", limit().layer(Answers)),
        Call::new(TOWERS, theirs().layer(Answers)),
        Call::new("retry", RetryLayer::new().layer(Answers)).beside(TOWERS),
        Call::new("request id and log", RequestIdLayer::new().layer(Answers)),
        Call::new("attempt's span", AttemptSpanLayer::new().layer(Answers)),
        Call::new("total deadline", total.layer(Answers)),
        Call::new("attempt timeout", attempt.layer(Answers)),
        Call::new(FOUR_WITH_TOWERS, four_with_theirs.service(Answers)),
        Call::new("the four layers", four.service(Answers)).beside(FOUR_WITH_TOWERS),
        Call::new("full preset stack", preset.layer(Answers)),
    ])
}

fn rows_of_a_retry() -> Result<Vec<Call>, BoxError> {
    // Never run, so that its clock stays where it starts, on a tick.
    let paused =
        Rc::new(tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?);
    let mut zero =
        ExponentialBackoffMaker::new(Duration::ZERO, Duration::from_secs(1), 0.99, HasherRng::default())
            .map_err(|error| error.to_string())?;
    let at_once = RetryLayer::new().with_custom_backoff(|| iter::repeat(Duration::ZERO));

    Ok(vec![
        Call::new("bare service, one call", Answers).on(&paused),
        Call::new(TOWERS, tower_retry(Some(&mut zero)).layer(every_second())).on(&paused),
        Call::new("retry", at_once.layer(every_second())).on(&paused).beside(TOWERS),
    ])
}

fn main() -> Result<(), BoxError> {
    let metered = cfg!(feature = "metrics").then_some("metrics");
    let sections = ["layers", "tower-http", "tower-http-info", "retry"].into_iter().chain(metered);
    let arguments = Arguments::parse(&sections.collect::<Vec<_>>())?;
    let settings = arguments.pick(Calls { rounds: 101, calls: 10_000 }, Calls { rounds: 5, calls: 1_000 });
    let mut report =
        Report::new("overhead", &format!("one thread; no subscriber where none is named; {settings}"));
    let compare = |id, title, rows| compare_calls(id, title, Ratio::Call, rows, settings);

    if arguments.wants("layers") {
        report.add(compare("layers", "A call that succeeds", rows()?)?);
    }
    if arguments.wants("tower-http") {
        report.add(compare("tower-http", "Beside tower-http, no subscriber", beside::rows()?)?);
    }
    if arguments.wants("tower-http-info") {
        let rows = beside::rows()?;
        report.add(at_info(|| compare("tower-http-info", "Beside tower-http, INFO to a sink", rows))?);
    }
    #[cfg(feature = "metrics")]
    if arguments.wants("metrics") {
        let (title, rows) = ("A call that succeeds, metrics to Prometheus' recorder", rows()?);
        report.add(with_metrics(|| compare("metrics", title, rows))?);
    }
    if arguments.wants("retry") {
        // Made only now: once a clock was paused, every reading of tokio's takes longer.
        report.add(compare("retry", "503, then 200, without a back-off", rows_of_a_retry()?)?);
    }
    report.write(&arguments)
}

/// Runs `work` with the metrics on; they can't be switched off again, but without a recorder they cost little.
#[cfg(feature = "metrics")]
fn with_metrics<T>(work: impl FnOnce() -> T) -> T {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    tower_outbound::adapter::metrics::enable();
    metrics::with_local_recorder(&recorder, work)
}
