//! Measures the overhead of whole stacks over a service that does nothing: this crate's preset, and stacks of layers of
//! tower, tower-http and tower-resilience.
//!
//! `cargo bench -p tower-outbound-peers --bench stacks` prints nanoseconds and allocations per call. Every row runs on
//! one runtime with one thread. Arguments after `--`:
//!
//! - `--quick` runs few rounds, to check that the bench works.
//! - `--only SECTION` runs one of `stacks`, `stacks-info`, `stacks-debug`.
//! - `--json PATH`, `--svg PATH` and `--markdown PATH` also write the figures, a plot and the tables. See README.md.
//!
//! All stacks have a request id, a log, a limit, a retry and a key. The preset also has two timeouts and a report, and
//! reads the server's rate-limit headers. "× peer" is the ratio of two overheads. An overhead is the duration of a call
//! minus that of the bare service.

use std::{rc::Rc, time::Duration};

use tokio::runtime::Runtime;
use tower::Layer;
use tower_outbound::{ApiKey, Quota, request_id::RequestIdLayer, stack::StackBuilder};
use tower_outbound_peers::{
    Arguments, BoxError, CallSettings, OkService, Ratio, Report, ServiceRow, at_info, at_level,
    compare_calls, runtime, tower_buffered, tower_resilience, tower_unlimited_retries,
};
use tracing::Level;

const UNLIMITED_RETRIES: &str = "tower-http + tower (retries not limited)";
const BUFFERED: &str = "tower-http + tower (Buffer + RateLimit inside retry)";
const RESILIENCE: &str = "tower-http + tower-resilience";
const PRESET: &str = "tower-outbound full preset stack";
const WITH_SPANS: &str = "tower-outbound full preset stack, two spans at INFO";

fn rows(runtime: &Rc<Runtime>) -> Result<Vec<ServiceRow>, BoxError> {
    let quota =
        Quota::new(4_000_000_000, Duration::from_secs(1))?.with_burst(2_000_000_000)?.without_margin();
    let preset = StackBuilder::new("https://api.example.com")?
        .with_name("bench")
        .with_api_key(ApiKey::new("s3cret")?)
        .with_quota(quota);
    let with_spans = preset.clone().with_request_id(RequestIdLayer::new().with_info_spans());
    // The runtime is entered, because tower's `Buffer` spawns a worker task.
    let _entered = runtime.enter();
    Ok(vec![
        ServiceRow::awaited("bare service", runtime, OkService),
        ServiceRow::awaited(UNLIMITED_RETRIES, runtime, tower_unlimited_retries(OkService)),
        ServiceRow::awaited(BUFFERED, runtime, tower_buffered(OkService)),
        ServiceRow::awaited(RESILIENCE, runtime, tower_resilience(OkService)?),
        ServiceRow::awaited(PRESET, runtime, preset.layer()?.layer(OkService))
            .compared_with(UNLIMITED_RETRIES),
        ServiceRow::awaited(WITH_SPANS, runtime, with_spans.layer()?.layer(OkService))
            .compared_with(UNLIMITED_RETRIES),
    ])
}

fn main() -> Result<(), BoxError> {
    let arguments = Arguments::parse(&["stacks", "stacks-info", "stacks-debug"])?;
    let settings =
        arguments.pick(CallSettings { rounds: 101, calls: 5_000 }, CallSettings { rounds: 5, calls: 1_000 });
    let mut report = Report::new("stacks", &format!("one thread, {settings}"));
    let runtime = Rc::new(runtime(1)?);
    let compare = |id, title| compare_calls(id, title, Ratio::OverBare, rows(&runtime)?, settings);

    if arguments.wants("stacks") {
        report.add(compare("stacks", "A call that succeeds, without a tracing subscriber")?);
    }
    if arguments.wants("stacks-info") {
        report.add(at_info(|| compare("stacks-info", "A call that succeeds, with INFO logs"))?);
    }
    if arguments.wants("stacks-debug") {
        let debug = || compare("stacks-debug", "A call that succeeds, with DEBUG logs");
        report.add(at_level(Level::DEBUG, debug)?);
    }
    report.write(&arguments)
}
