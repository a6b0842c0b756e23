//! Measures the overhead of each layer and of the whole preset stack over a service that does nothing.
//!
//! Two comparisons use layers of other crates that do the same work. `RetryLayer` is compared with `tower::retry`. The
//! layers for request id, log and key are compared with tower-http's layers. The comparison with tower-http runs twice:
//! without a tracing subscriber, and with a subscriber that formats and discards every event.
//!
//! `cargo bench --bench overhead` prints nanoseconds and allocations per call. The rows are interleaved: each round
//! measures every row briefly, so that other load on the machine affects all rows. The table shows medians of the
//! rounds. Differences and ratios are computed within each round. Arguments after `--`:
//!
//! - `--quick` runs few rounds, to check that the bench works.
//! - `--only SECTION` runs one of `layers`, `tower-http`, `tower-http-info`, `metrics`, `retry`.
//! - `--json PATH`, `--svg PATH` and `--markdown PATH` also write the figures, a plot and the tables. See ../README.md.
//!
//! Whole stacks of other crates are in `benches/stacks.rs`, so that this crate's tests do not build those crates.
//!
//! In the section `retry`, the first attempt of each call fails, and the backoff is zero. A real clock cannot measure
//! such a call, because tokio rounds every sleep up to its tick of 1 ms. A tick is a thousand times as long as the
//! retry. The rows of this section therefore use a paused clock that is exactly on a tick. On this clock, a sleep of
//! zero completes at its first poll.

#[allow(dead_code, unreachable_pub, unused_imports, reason = "this bench uses a part of the shared code")]
#[path = "../shared/mod.rs"]
mod shared;
mod tower_http_rows;

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
    limit::{LocalLimiter, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    stack::StackBuilder,
    timeout::{AttemptTimeoutLayer, TotalTimeoutLayer},
};

use self::shared::{
    Arguments, BoxError, CallSettings, OkService, Ratio, Report, ServiceRow, at_info, compare_calls,
    tower_retry,
};

/// Creates a service that responds with 503 and 200 alternately.
fn alternately_failing<B>()
-> impl Service<Request<B>, Response = Response<Empty<Bytes>>, Error = Infallible> + Clone {
    let failed = Rc::new(Cell::new(false));
    ServiceExt::<Request<B>>::map_response(OkService, move |mut response: Response<_>| {
        if !failed.replace(!failed.get()) {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    })
}

const TOWER_RETRY: &str = "tower::retry (3 attempts, tower's ExponentialBackoff)";
const FOUR_WITH_TOWER_RETRY: &str = "request id, tower::retry, limit and auth layers";

fn rows() -> Result<Vec<ServiceRow>, BoxError> {
    // The quota is so large that no call waits. These rows measure the cost of a permit, not the wait.
    let quota =
        Quota::new(4_000_000_000, Duration::from_secs(1))?.with_burst(2_000_000_000)?.without_margin();
    let limit = || RateLimitLayer::new(LocalLimiter::token_bucket(quota));
    let key = ApiKey::new("s3cret")?;
    let auth = AuthLayer::new(key.clone(), Origin::parse("https://api.example.com")?)?;
    let total = TotalTimeoutLayer::new(Duration::from_secs(60))?;
    let attempt = AttemptTimeoutLayer::new(Duration::from_secs(10))?;
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
    let four_with_tower_retry = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(tower_retry(None))
        .layer(limit())
        .layer(auth.clone());

    Ok(vec![
        ServiceRow::new("bare service", OkService),
        ServiceRow::new("auth", auth.layer(OkService)),
        ServiceRow::new("rate limit", limit().layer(OkService)),
        ServiceRow::new(TOWER_RETRY, tower_retry(None).layer(OkService)),
        ServiceRow::new("retry", RetryLayer::new().layer(OkService)).compared_with(TOWER_RETRY),
        ServiceRow::new("request id and log", RequestIdLayer::new().layer(OkService)),
        ServiceRow::new("attempt span", AttemptSpanLayer::new().layer(OkService)),
        ServiceRow::new("total timeout", total.layer(OkService)),
        ServiceRow::new("attempt timeout", attempt.layer(OkService)),
        ServiceRow::new(FOUR_WITH_TOWER_RETRY, four_with_tower_retry.service(OkService)),
        ServiceRow::new("request id, retry, limit and auth layers", four.service(OkService))
            .compared_with(FOUR_WITH_TOWER_RETRY),
        ServiceRow::new("full preset stack", preset.layer(OkService)),
    ])
}

fn retry_rows() -> Result<Vec<ServiceRow>, BoxError> {
    // This runtime is entered but never driven. Its paused clock therefore stays on the tick on which the runtime was
    // built.
    let paused =
        Rc::new(tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?);
    let mut zero =
        ExponentialBackoffMaker::new(Duration::ZERO, Duration::from_secs(1), 0.99, HasherRng::default())
            .map_err(|error| error.to_string())?;
    let zero_backoff = RetryLayer::new().with_custom_backoff(|| iter::repeat(Duration::ZERO));

    Ok(vec![
        ServiceRow::new("bare service, one call", OkService).on(&paused),
        ServiceRow::new(TOWER_RETRY, tower_retry(Some(&mut zero)).layer(alternately_failing())).on(&paused),
        ServiceRow::new("retry", zero_backoff.layer(alternately_failing()))
            .on(&paused)
            .compared_with(TOWER_RETRY),
    ])
}

fn main() -> Result<(), BoxError> {
    let metrics = cfg!(feature = "metrics").then_some("metrics");
    let sections = ["layers", "tower-http", "tower-http-info", "retry"].into_iter().chain(metrics);
    let arguments = Arguments::parse(&sections.collect::<Vec<_>>())?;
    let settings =
        arguments.pick(CallSettings { rounds: 101, calls: 10_000 }, CallSettings { rounds: 5, calls: 1_000 });
    let mut report = Report::new(
        "overhead",
        &format!("one thread, no tracing subscriber unless the section names one, {settings}"),
    );
    let compare = |id, title, rows| compare_calls(id, title, Ratio::Call, rows, settings);

    if arguments.wants("layers") {
        report.add(compare("layers", "A call that succeeds", rows()?)?);
    }
    if arguments.wants("tower-http") {
        report.add(compare(
            "tower-http",
            "Compared with tower-http (no tracing subscriber)",
            tower_http_rows::rows()?,
        )?);
    }
    if arguments.wants("tower-http-info") {
        let rows = tower_http_rows::rows()?;
        report
            .add(at_info(|| compare("tower-http-info", "Compared with tower-http (with INFO logs)", rows))?);
    }
    #[cfg(feature = "metrics")]
    if arguments.wants("metrics") {
        let (title, rows) = ("A call that succeeds, metrics to Prometheus' recorder", rows()?);
        report.add(with_metrics(|| compare("metrics", title, rows))?);
    }
    if arguments.wants("retry") {
        // The section `retry` runs last, because reading tokio's clock takes longer after any runtime has paused its
        // clock.
        report.add(compare("retry", "A retried call: 503, then 200, without backoff", retry_rows()?)?);
    }
    report.write(&arguments)
}

/// Runs `work` with metrics enabled and a recorder installed. Metrics cannot be disabled again, but cost little without
/// a recorder.
#[cfg(feature = "metrics")]
fn with_metrics<T>(work: impl FnOnce() -> T) -> T {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    tower_outbound::adapter::metrics::enable();
    metrics::with_local_recorder(&recorder, work)
}
