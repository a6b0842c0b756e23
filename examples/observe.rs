//! What a service that fails and recovers looks like from here: the log on the terminal, and a page of metrics, scraped
//! from Prometheus' own exporter.
//!
//! The service is a stand-in on loopback. It refuses a key that is out of date, is unavailable for a moment, asks for a
//! pause, drops a connection, and then works again.
//!
//! `cargo run --example observe`

#[path = "support/mod.rs"]
mod support;

use std::{
    error::Error,
    io::{self, IsTerminal},
    net::TcpListener,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use http::Uri;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::{client::legacy, rt::TokioExecutor};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use support::{Answer, Plan, StandIn, When::Nth};
use tokio::time::Instant;
use tower_outbound::{
    ApiKey, BoxError, Client, InvalidConfig, Quota, adapter::metrics, auth::FreshKey, preset,
};
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt::{self, FmtContext, FormatEvent, FormatFields, FormattedFields, format::Writer},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    log();
    let page = start_exporter()?;

    let service = StandIn::start(Plan {
        latency: Duration::from_millis(20),
        faults: vec![
            (Nth(3), Answer::Unavailable),
            (Nth(4), Answer::Unavailable),
            (Nth(6), Answer::Throttled),
            (Nth(9), Answer::Dropped),
            (Nth(11), Answer::Dropped),
        ],
        ..Plan::new("rates", "key-2")
    })
    .await?;
    let rates = client(&service.base_url())?;

    say("the first key is out of date: it is replaced, and the request sent once more");
    rates.get("/v1/latest").await?;
    say("unavailable, twice: it is tried again");
    rates.get("/v1/latest").await?;
    say("a request that is throttled: everybody waits as long as the service asks");
    tokio::try_join!(rates.get("/v1/latest"), rates.get("/v1/history"))?;
    say("a connection that drops: the GET goes again, the POST may have been processed and does not");
    rates.get("/v1/latest").await?;
    if let Err(error) = rates.post("/v1/alerts", "{}").await {
        println!("-- the caller reads: {}", chain(&error));
    }
    say("it works again");
    for _ in 0..3 {
        rates.get("/v1/latest").await?;
    }

    say("the page that Prometheus scrapes");
    let page = scrape(page).await?;
    println!("{page}");
    // An example that shows nothing is not to look as if it had worked.
    for shown in [
        "http_client_request_duration_count",
        "limit_pause_duration_count",
        "retry_give_ups",
        "auth_refusals",
    ] {
        if !page.contains(shown) {
            return Err(format!("{shown} is not on the page").into());
        }
    }
    Ok(())
}

/// An error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut chain = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        chain = format!("{chain}: {error}");
        cause = error.source();
    }
    chain
}

fn say(what: &str) {
    println!("\n-- {what}");
}

/// All that the crate tells, and nothing of what the libraries below it tell.
fn log() {
    let only = Targets::new().with_target("tower_outbound", LevelFilter::DEBUG);
    let lines = fmt::layer().with_ansi(io::stdout().is_terminal()).event_format(Line(Instant::now()));
    tracing_subscriber::registry().with(lines).with(only).init();
}

/// Time, level, target and fields of an event, after the call's span.
struct Line(Instant);

impl<S, N> FormatEvent<S, N> for Line
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

/// Gives the address of its page.
fn start_exporter() -> Result<Uri, BoxError> {
    let mut tries = 0;
    let address = loop {
        // A port that is free now; the exporter does not tell which one it took. Another may be faster.
        let address = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let exporter = PrometheusBuilder::new()
            .with_http_listener(address)
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
        .with_key_provider(move || {
            let key = format!("key-{}", fetched.fetch_add(1, Relaxed) + 1);
            async move { ApiKey::new(key).map(FreshKey::new) }
        })
        .with_quota(Quota::per_second(20)?.with_burst(2)?)
        .client()
}

async fn scrape(page: Uri) -> Result<String, BoxError> {
    let client = legacy::Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let page = client.get(page).await?.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(page.into())?)
}
