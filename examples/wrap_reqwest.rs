//! Puts this crate's layers over an existing reqwest client.
//!
//! The program makes the same calls in three ways:
//!
//! 1. With reqwest alone.
//! 2. With `SendWith`, which sends the requests of reqwest through a preset, and returns a `reqwest::Response`.
//! 3. With a client over reqwest, for new code.
//!
//! Each of the three ways has its own mock server on loopback. The server checks the key, allows 5 requests per second,
//! fails two requests, and counts the requests.
//!
//! `cargo run --example wrap_reqwest`. `--help` shows more.

#[path = "support/mod.rs"]
mod support;

use std::{process::ExitCode, time::Duration};

use reqwest::{StatusCode, redirect::Policy};
use tokio::time::Instant;
use tower_outbound::{
    ApiKey, BoxError, Quota, Report,
    adapter::{Reqwest, SendWith},
    preset,
    stack::StackBuilder,
};
use tower_outbound_examples::{no_arguments, run};

use self::support::{MockConfig, MockResponse, MockServer, Trigger};

const HELP: &str = "\
Makes the same 12 calls three times: with reqwest alone, with reqwest below a preset's layers, and with a client
over reqwest.

Usage: cargo run --example wrap_reqwest

  --help  this text

The mock server on loopback allows 5 requests per second and fails two requests. The program takes about 10 seconds.

Exit status: 0, 1 if a guarantee was broken, 2 for an invalid argument, 130 after Ctrl-C.
";

const KEY: &str = "s3cret-of-the-example";
const CALLS: usize = 12;
const QUOTA: (usize, Duration) = (5, Duration::from_secs(1));

/// Configures a preset with the quota and the key of the service. All other settings are defaults.
fn preset(server: &MockServer) -> Result<StackBuilder, BoxError> {
    let quota =
        Quota::new(QUOTA.0 as u32, QUOTA.1)?.with_burst(2)?.with_margin(Duration::from_millis(200))?;
    Ok(preset::realtime_messaging(server.base_url())?.with_api_key(ApiKey::new(KEY)?).with_quota(quota))
}

async fn mock_server() -> Result<MockServer, BoxError> {
    let mut config = MockConfig::new("mock", KEY);
    config.quota = Some(QUOTA);
    config.faults =
        vec![(Trigger::Nth(3), MockResponse::Unavailable), (Trigger::Nth(7), MockResponse::Dropped)];
    Ok(MockServer::start(config).await?)
}

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(HELP);
    run(steps(), support::partial_summary).await
}

async fn steps() -> Result<(), BoxError> {
    println!("{CALLS} GETs to a server that allows 5 requests per second and fails two requests.\n");

    let server = mock_server().await?;
    let reqwest_client = reqwest::Client::builder().no_proxy().build()?;
    let start = Instant::now();
    let mut succeeded = 0;
    for number in 1..=CALLS {
        let request = reqwest_client.get(format!("{}/v1/items/{number}", server.base_url()));
        match request.bearer_auth(KEY).send().await {
            Ok(response) => {
                println!("  item {number:>2}: {}", response.status());
                succeeded += usize::from(response.status().is_success());
            }
            Err(error) => println!("  item {number:>2}: {}", error.without_url()),
        }
    }
    summary("1. reqwest alone", &server, succeeded, start);

    let server = mock_server().await?;
    let builder = reqwest::Client::builder().no_proxy().user_agent("example/1.0");
    let client = builder.redirect(Policy::none()).build()?;
    let stack = preset(&server)?.reqwest(client.clone())?;
    let start = Instant::now();
    let mut succeeded = 0;
    for number in 1..=CALLS {
        let request = client.get(format!("{}/v1/items/{number}", server.base_url()));
        // Each call runs in its own task, as in a server's handler. All calls share the limiter and the connections.
        let response = tokio::spawn(request.send_with(&stack)).await??;
        print_item(number, response.status(), Report::from_extensions(response.extensions()));
        succeeded += usize::from(response.error_for_status()?.text().await?.contains("\"status\":200"));
    }
    summary("2. SendWith: the same calls through a preset", &server, succeeded, start);
    check(&server, succeeded)?;

    let server = mock_server().await?;
    let client =
        preset(&server)?.client_with_service(Reqwest::new(reqwest::Client::builder().no_proxy())?)?;
    let start = Instant::now();
    let mut succeeded = 0;
    for number in 1..=CALLS {
        let response = client.get(format!("/v1/items/{number}")).await?;
        print_item(number, response.status(), response.report());
        succeeded += usize::from(response.error_for_status().await?.text().await?.contains("\"status\":200"));
    }
    summary("3. A client over reqwest", &server, succeeded, start);
    check(&server, succeeded)
}

fn print_item(number: usize, status: StatusCode, report: Option<&Report>) {
    let attempts = report.map_or(0, Report::attempt_count);
    println!("  item {number:>2}: {status}, attempts: {attempts}");
}

fn summary(title: &str, server: &MockServer, succeeded: usize, start: Instant) {
    let log = server.request_log();
    println!("{title}: {succeeded} of {CALLS} calls succeeded in {:.1} s", start.elapsed().as_secs_f64());
    println!(
        "  the server received {} requests: {} over its limit, {} without the key; by status: {:?}\n",
        log.requests.len(),
        log.violations(),
        log.unauthorized(),
        log.statuses(),
    );
}

fn check(server: &MockServer, succeeded: usize) -> Result<(), BoxError> {
    let log = server.request_log();
    match succeeded == CALLS && log.violations() == 0 && log.unauthorized() == 0 {
        true => Ok(()),
        false => Err("a guarantee was broken".into()),
    }
}
