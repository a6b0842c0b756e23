//! Shows the log and the metrics of calls to a service that fails and recovers.
//!
//! The service is a mock server on loopback. It rejects an expired key, responds 503 twice, requests a delay, drops a
//! connection, and then recovers. `metrics-exporter-prometheus` serves the metrics.
//!
//! `cargo run --example observe`. `--help` shows more.

#[path = "support/mod.rs"]
mod support;

use std::{
    io::{self, IsTerminal},
    net::TcpListener,
    process::ExitCode,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use http::Uri;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::{client::legacy, rt::TokioExecutor};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use support::{MockConfig, MockResponse, MockServer, Trigger::Nth};
use tokio::time::Instant;
use tower_outbound::{
    ApiKey, BoxError, Client, InvalidConfig, Quota,
    adapter::metrics,
    auth::{FreshKey, RefreshingKey},
    preset,
};
use tower_outbound_examples::{chain, no_arguments, run};
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt::{self, FmtContext, FormatEvent, FormatFields, FormattedFields, format::Writer},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

const HELP: &str = "\
Calls a service that fails and recovers, and prints the log of the calls and the metrics that Prometheus reads.

Usage: cargo run --example observe

  --help  this text

The service is a mock server on loopback. The program takes about 2 seconds.

Exit status: 0, 1 if a call fails unexpectedly or a metric is missing, 2 for an invalid argument, 130 after Ctrl-C.
";

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(HELP);
    run(calls(), support::partial_summary).await
}

async fn calls() -> Result<(), BoxError> {
    init_log();
    let metrics_url = start_exporter()?;

    let service = MockServer::start(MockConfig {
        latency: Duration::from_millis(20),
        faults: vec![
            (Nth(3), MockResponse::Unavailable),
            (Nth(4), MockResponse::Unavailable),
            (Nth(6), MockResponse::Throttled),
            (Nth(9), MockResponse::Dropped),
            (Nth(11), MockResponse::Dropped),
        ],
        ..MockConfig::new("rates", "key-2")
    })
    .await?;
    let rates = client(&service.base_url())?;

    heading("the first key has expired: the layer refreshes it and resends the request");
    rates.get("/v1/latest").await?;
    heading("503 twice: the call is retried");
    rates.get("/v1/latest").await?;
    heading("429 with Retry-After: every caller waits for the requested delay");
    tokio::try_join!(rates.get("/v1/latest"), rates.get("/v1/history"))?;
    heading("the connection drops: the GET is retried; the POST is not, because it may have been processed");
    rates.get("/v1/latest").await?;
    if let Err(error) = rates.post("/v1/alerts").body("{}").await {
        println!("-- the caller's error: {}", chain(&error));
    }
    heading("the metrics that Prometheus reads, without descriptions, buckets and sums");
    let page = scrape(metrics_url).await?;
    let mut series: Vec<_> = page.lines().filter(|line| is_single_value(line)).collect();
    series.sort_unstable();
    println!("{}", series.join("\n"));
    for name in [
        "http_client_request_duration_seconds_count",
        "limit_pause_duration_seconds_count",
        "retry_give_ups_total",
        "auth_rejections_total",
    ] {
        if !page.contains(name) {
            return Err(format!("the metric {name} is missing").into());
        }
    }
    Ok(())
}

/// Returns whether the line is a sample, but not the bucket or the sum of a histogram.
fn is_single_value(line: &str) -> bool {
    let name = line.split(['{', ' ']).next().unwrap_or_default();
    !line.is_empty() && !line.starts_with('#') && !name.ends_with("_bucket") && !name.ends_with("_sum")
}

fn heading(text: &str) {
    println!("\n-- {text}");
}

/// Installs a logger. It logs events of attempts and retries from DEBUG on. It logs events of other modules from INFO
/// on, which are at most one per call.
fn init_log() {
    let filter = Targets::new()
        .with_target("tower_outbound", LevelFilter::INFO)
        .with_target("tower_outbound::call", LevelFilter::DEBUG)
        .with_target("tower_outbound::attempt_span", LevelFilter::DEBUG)
        .with_target("tower_outbound::retry", LevelFilter::DEBUG);
    let lines = fmt::layer().with_ansi(io::stdout().is_terminal()).event_format(EventLine(Instant::now()));
    tracing_subscriber::registry().with(lines).with(filter).init();
}

/// Formats a log event as time, level, target, fields of the call's span, and fields of the event.
struct EventLine(Instant);

impl<S, N> FormatEvent<S, N> for EventLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let (metadata, time) = (event.metadata(), self.0.elapsed().as_secs_f64());
        let target = metadata.target().trim_start_matches("tower_outbound::");
        write!(to, "{time:6.3} {:5} {target:8} ", metadata.level())?;
        for span in context.event_scope().into_iter().flatten().filter(|span| span.name() == "call") {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                write!(to, "call{{{fields}}}: ")?;
            }
        }
        context.format_fields(to.by_ref(), event)?;
        writeln!(to)
    }
}

/// Starts the Prometheus exporter. Returns the URL of the metrics page.
fn start_exporter() -> Result<Uri, BoxError> {
    let mut tries = 0;
    let address = loop {
        // The exporter does not report its port, so this function chooses a free port. Another process may take that
        // port before the exporter does.
        let address = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let exporter = PrometheusBuilder::new()
            .with_http_listener(address)
            .with_recommended_naming(true)
            .set_buckets_for_metric(Matcher::Suffix("duration".into()), &metrics::BUCKETS)?;
        match exporter.install() {
            Ok(()) => break address,
            Err(_) if tries < 5 => tries += 1,
            Err(error) => return Err(error.into()),
        }
    };
    metrics::enable();
    Ok(format!("http://{address}/metrics").parse()?)
}

fn client(base_url: &str) -> Result<Client, InvalidConfig> {
    let fetched = AtomicU32::new(0);
    preset::currency_rates(base_url)?
        .with_keys(RefreshingKey::new(move || {
            let key = format!("key-{}", fetched.fetch_add(1, Relaxed) + 1);
            async move { ApiKey::new(key).map(FreshKey::new) }
        }))
        .with_quota(Quota::per_second(20)?.with_burst(2)?)
        .client()
}

async fn scrape(url: Uri) -> Result<String, BoxError> {
    let client = legacy::Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let page = client.get(url).await?.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(page.into())?)
}
