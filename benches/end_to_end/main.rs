//! Measures HTTP clients on loopback: requests per second, latency and CPU time of the client, for HTTP/1.1 and HTTP/2
//! with 1 and 64 requests in flight. The server is hyper in a separate process.
//!
//! `cargo bench -p tower-outbound-peers --bench end_to_end` prints a table for each section. Arguments after `--`:
//!
//! - `--quick` runs briefly, to check that the bench works.
//! - `--only SECTION` runs one of `http1-1`, `http1-64`, `http2-1`, `http2-64`. Of the last two and `http1-64`, the
//!   sections with the endings `-2` and `-8` compare the transport and the client on 2 and 8 worker threads.
//! - `--json PATH`, `--svg PATH` and `--markdown PATH` also write the figures, a plot and the tables. See README.md.
//!
//! Unless a section names its threads, the clients run on one thread of this process, and the server on one thread of its own process. The rows are
//! interleaved. The table shows medians of the samples, and medians of the ratios within each round. Every response is
//! read to its end and compared with the expected body. HTTP/2 uses prior knowledge, without TLS.

mod clients;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::{Uri, Version};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use tokio::sync::Mutex;
use tower::{Layer, ServiceBuilder};
use tower_outbound::{
    ApiKey, Quota,
    auth::{AuthLayer, Origin},
    limit::{LocalLimiter, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    stack::StackBuilder,
    transport::TransportConfig,
};
use tower_outbound_peers::{
    Arguments, BoxError, ClientComparison, Report, ServerProcess, Settings, Table, serve, tower_buffered,
    tower_resilience,
};

use self::clients::{
    ByHand, Connection, Fields, Middleware, NoBody, Outbound, OutboundQuery, Reqwest, ServiceClient,
    WithFields,
};

/// The name of the row that is the base of the ratios.
const BARE: &str = "hyper-util client with the same header fields";

/// Creates hyper-util's client with the settings of this crate's client.
fn pooled<B>(version: Version) -> Client<HttpConnector, B>
where
    B: http_body::Body + Send,
    B::Data: Send,
{
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    Client::builder(TokioExecutor::new()).http2_only(version == Version::HTTP_2).build(connector)
}

fn quota() -> Result<Quota, BoxError> {
    Ok(Quota::new(4_000_000_000, Duration::from_secs(1))?.with_burst(2_000_000_000)?.without_margin())
}

fn preset(base: &str) -> Result<StackBuilder, BoxError> {
    Ok(StackBuilder::new(base)?.with_name("bench").with_api_key(ApiKey::new("s3cret")?).with_quota(quota()?))
}

fn section(
    id: &'static str,
    server: SocketAddr,
    version: Version,
    in_flight: usize,
    threads: usize,
    settings: Settings,
) -> Result<Table, BoxError> {
    let base = format!("http://{server}");
    let uri: Uri = format!("{base}/v1/resources").parse()?;
    let url = reqwest::Url::parse(&format!("{base}/v1/resources"))?;
    let http2 = version == Version::HTTP_2;
    let name = if http2 { "HTTP/2" } else { "HTTP/1.1" };
    let mut comparison = ClientComparison::new(in_flight, threads)?;

    let client = pooled::<NoBody>(version);
    comparison.row("hyper-util client, bare", async || Ok(ServiceClient(client.clone(), uri.clone())))?;
    comparison.row(BARE, async || Ok(WithFields(client.clone(), uri.clone(), Fields::new())))?;
    let config =
        if http2 { TransportConfig::new().with_http2_prior_knowledge() } else { TransportConfig::new() };
    let transport = config.clone().build()?;
    comparison.row("tower-outbound transport with the same header fields", async || {
        Ok(WithFields(transport.clone(), uri.clone(), Fields::new()))
    })?;
    let client_of_preset = preset(&base)?.client_with_transport(config.clone())?;
    if threads > 1 {
        comparison.row("tower-outbound client", async || Ok(Outbound(client_of_preset.clone())))?;
        let title = format!("{name}, {in_flight} in flight, {threads} worker threads");
        return comparison.run(id, &title, BARE, settings);
    }

    let bucket = LocalLimiter::token_bucket(quota()?);
    let by_hand = |timeout| ByHand {
        client: WithFields(client.clone(), uri.clone(), Fields::new()),
        bucket: bucket.clone(),
        timeout,
    };
    comparison.row("hyper-util + permit, head and times by hand", async || Ok(by_hand(None)))?;
    comparison.row("hyper-util + permit, head, times and timeout by hand", async || {
        Ok(by_hand(Some(Duration::from_secs(10))))
    })?;

    let first = Arc::new(Mutex::new(None::<Connection>));
    comparison.row("hyper connection, no pool", async || {
        let mut first = first.lock().await;
        if let Some(shared) = first.as_ref().and_then(Connection::shared) {
            return Ok(shared);
        }
        let connection = Connection::open(uri.clone(), version).await?;
        *first = connection.shared();
        Ok(connection)
    })?;

    let client = client_of_preset;
    comparison.row("tower-outbound client", async || Ok(Outbound(client.clone())))?;
    comparison.repeat_at_info("tower-outbound client, with INFO logs");
    comparison.row("tower-outbound client, with a query", async || Ok(OutboundQuery(client.clone())))?;

    let stack = preset(&base)?.layer()?.layer(pooled(version));
    comparison.row("tower-outbound stack over hyper-util", async || {
        Ok(ServiceClient(stack.clone(), uri.clone()))
    })?;

    let auth = AuthLayer::new(ApiKey::new("s3cret")?, Origin::parse(&base)?)?;
    let layers = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(LocalLimiter::token_bucket(quota()?)))
        .layer(auth);
    let four = layers.clone().service(pooled(version));
    comparison.row("request id, retry, limit and auth layers over hyper-util", async || {
        Ok(ServiceClient(four.clone(), uri.clone()))
    })?;
    let transport = config.build()?;
    let four = layers.clone().service(transport);
    comparison.row("request id, retry, limit and auth layers over the transport", async || {
        Ok(ServiceClient(four.clone(), uri.clone()))
    })?;
    let client = Arc::new(pooled(version));
    let four = layers.service(tower::service_fn(move |request| client.request(request)));
    comparison.row("request id, retry, limit and auth layers over hyper-util in an Arc", async || {
        Ok(ServiceClient(four.clone(), uri.clone()))
    })?;

    let resilience = tower_resilience(pooled::<NoBody>(version))?;
    comparison.row("hyper-util + tower-http + tower-resilience", async || {
        Ok(ServiceClient(resilience.clone(), uri.clone()))
    })?;
    comparison.repeat_at_info("hyper-util + tower-http + tower-resilience, with INFO logs");

    let mut buffered = None;
    comparison.row("hyper-util + tower-http + tower with Buffer", async || {
        let stack = buffered.get_or_insert_with(|| tower_buffered(pooled::<NoBody>(version)));
        Ok(ServiceClient(stack.clone(), uri.clone()))
    })?;

    let builder = reqwest::Client::builder();
    let client = if http2 { builder.http2_prior_knowledge() } else { builder.http1_only() }.build()?;
    comparison.row("reqwest", async || Ok(Reqwest(client.clone(), url.clone(), Fields::new())))?;

    let policy = ExponentialBackoff::builder().build_with_max_retries(2);
    let middleware = reqwest_middleware::ClientBuilder::new(client.clone())
        .with(RetryTransientMiddleware::new_with_policy(policy))
        .build();
    comparison.row("reqwest-middleware + reqwest-retry", async || {
        Ok(Middleware(middleware.clone(), url.clone(), Fields::new()))
    })?;

    comparison.run(id, &format!("{name}, {in_flight} in flight"), BARE, settings)
}

fn main() -> Result<(), BoxError> {
    if serve()? {
        return Ok(());
    }
    let sections = [
        ("http1-1", Version::HTTP_11, 1, 1),
        ("http1-64", Version::HTTP_11, 64, 1),
        ("http1-64-2", Version::HTTP_11, 64, 2),
        ("http1-64-8", Version::HTTP_11, 64, 8),
        ("http2-1", Version::HTTP_2, 1, 1),
        ("http2-64", Version::HTTP_2, 64, 1),
        ("http2-64-2", Version::HTTP_2, 64, 2),
        ("http2-64-8", Version::HTTP_2, 64, 8),
    ];
    let arguments = Arguments::parse(&sections.map(|(id, ..)| id))?;
    let settings = arguments.pick(
        Settings { sample: Duration::from_millis(150), rounds: 31 },
        Settings { sample: Duration::from_millis(25), rounds: 3 },
    );
    let method = format!("medians of {} samples of {:?}, rows interleaved", settings.rounds, settings.sample);
    let mut report = Report::new("end_to_end", &method);
    let server = ServerProcess::start()?;
    for (id, version, in_flight, threads) in sections {
        if arguments.wants(id) {
            let address = if version == Version::HTTP_2 { server.http2 } else { server.http1 };
            report.add(section(id, address, version, in_flight, threads, settings)?);
        }
    }
    report.write(&arguments)
}
