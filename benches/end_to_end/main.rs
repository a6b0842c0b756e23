//! What clients do on loopback, against a hyper server in a process of its own: requests a second, how long each takes
//! and what it costs the client's processor; HTTP/1.1 and HTTP/2, 1 and 64 requests in flight.
//!
//! `cargo bench -p tower-outbound-peers --bench end_to_end` prints a table for each section. After `--`:
//!
//! - `--quick` runs short, to see that it works;
//! - `--only SECTION` runs one of `http1-1`, `http1-64`, `http2-1`, `http2-64`;
//! - `--json PATH`, `--svg PATH` and `--markdown PATH` write the figures, a plot and the tables as well, see README.md.
//!
//! The client has one thread, the server another, each in its process: on two cores they share nothing but the kernel.
//! The clients take turns, round after round; what is printed are medians of the turns, and a ratio is the median of
//! the rounds' own. Every answer is read to its end and compared. HTTP/2 is spoken from the first byte, without TLS.

mod callers;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::{Uri, Version};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use tokio::sync::Mutex;
use tower::Layer;
use tower_outbound::{ApiKey, Quota, client::Transport, stack::StackBuilder};
use tower_outbound_peers::{
    Arguments, BoxError, OwnServer, Race, Report, Settings, Table, serve, tower_buffered, tower_resilience,
};

use self::callers::{Connection, Middleware, NoBody, Of, Ours, Reqwest};

/// What the ratios are to.
const BARE: &str = "hyper-util client, bare";

/// hyper-util's client as this crate builds it.
fn pooled<B>(version: Version) -> Client<HttpConnector, B>
where
    B: http_body::Body + Send,
    B::Data: Send,
{
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    Client::builder(TokioExecutor::new()).http2_only(version == Version::HTTP_2).build(connector)
}

fn preset(base: &str) -> Result<StackBuilder, BoxError> {
    let quota =
        Quota::new(4_000_000_000, Duration::from_secs(1))?.with_burst(2_000_000_000)?.without_margin();
    Ok(StackBuilder::new(base)?.with_name("bench").with_api_key(ApiKey::new("s3cret")?).with_quota(quota))
}

fn section(
    id: &'static str,
    server: SocketAddr,
    version: Version,
    in_flight: usize,
    settings: Settings,
) -> Result<Table, BoxError> {
    let base = format!("http://{server}");
    let uri: Uri = format!("{base}/v1/resources").parse()?;
    let url = reqwest::Url::parse(&format!("{base}/v1/resources"))?;
    let http2 = version == Version::HTTP_2;
    let mut race = Race::new(in_flight)?;

    let client = pooled::<NoBody>(version);
    race.row(BARE, async || Ok(Of(client.clone(), uri.clone())))?;

    let first = Arc::new(Mutex::new(None::<Connection>));
    race.row("hyper connection, no pool", async || {
        let mut first = first.lock().await;
        if let Some(shared) = first.as_ref().and_then(Connection::shared) {
            return Ok(shared);
        }
        let connection = Connection::open(uri.clone(), version).await?;
        *first = connection.shared();
        Ok(connection)
    })?;

    let transport = if http2 { Transport::new().with_http2_prior_knowledge() } else { Transport::new() };
    let client = preset(&base)?.client_with_transport(transport)?;
    race.row("tower-outbound client", async || Ok(Ours(client.clone())))?;
    race.again_at_info("tower-outbound client, INFO to a sink");

    let stack = preset(&base)?.layer()?.layer(pooled(version));
    race.row("tower-outbound stack over hyper-util", async || Ok(Of(stack.clone(), uri.clone())))?;

    let resilience = tower_resilience(pooled::<NoBody>(version))?;
    race.row("hyper-util + tower-http + tower-resilience", async || Ok(Of(resilience.clone(), uri.clone())))?;
    race.again_at_info("hyper-util + tower-http + tower-resilience, INFO to a sink");

    let mut buffered = None;
    race.row("hyper-util + tower-http + tower, Buffer", async || {
        let stack = buffered.get_or_insert_with(|| tower_buffered(pooled::<NoBody>(version)));
        Ok(Of(stack.clone(), uri.clone()))
    })?;

    let builder = reqwest::Client::builder();
    let client = if http2 { builder.http2_prior_knowledge() } else { builder.http1_only() }.build()?;
    race.row("reqwest", async || Ok(Reqwest(client.clone(), url.clone())))?;

    let policy = ExponentialBackoff::builder().build_with_max_retries(2);
    let middleware = reqwest_middleware::ClientBuilder::new(client.clone())
        .with(RetryTransientMiddleware::new_with_policy(policy))
        .build();
    race.row("reqwest-middleware + reqwest-retry", async || Ok(Middleware(middleware.clone(), url.clone())))?;

    let name = if http2 { "HTTP/2" } else { "HTTP/1.1" };
    race.run(id, &format!("{name}, {in_flight} in flight"), BARE, settings)
}

fn main() -> Result<(), BoxError> {
    if serve()? {
        return Ok(());
    }
    let sections = [
        ("http1-1", Version::HTTP_11, 1),
        ("http1-64", Version::HTTP_11, 64),
        ("http2-1", Version::HTTP_2, 1),
        ("http2-64", Version::HTTP_2, 64),
    ];
    let arguments = Arguments::parse(&sections.map(|(id, ..)| id))?;
    let settings = arguments.pick(
        Settings { turn: Duration::from_millis(150), rounds: 31 },
        Settings { turn: Duration::from_millis(25), rounds: 3 },
    );
    let how = format!("medians of {} turns of {:?}, row after row", settings.rounds, settings.turn);
    let mut report = Report::new("end_to_end", &how);
    let server = OwnServer::start()?;
    for (id, version, in_flight) in sections {
        if arguments.wants(id) {
            let at = if version == Version::HTTP_2 { server.http2 } else { server.http1 };
            report.add(section(id, at, version, in_flight, settings)?);
        }
    }
    report.write(&arguments)
}
