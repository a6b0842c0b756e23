//! Puts this crate's layers over an existing reqwest client.
//!
//! The program makes the same calls in three ways:
//!
//! 1. With reqwest alone.
//! 2. With `ApiClient`, which you can copy. It takes a `reqwest::RequestBuilder`, sends the request through a preset,
//!    and returns a `reqwest::Response`.
//! 3. With a ready client over reqwest, for new code.
//!
//! Each time, a mock server on loopback checks the key, allows 5 requests per second, fails two requests, and counts.
//!
//! `cargo run --example wrap_reqwest`. `--help` shows more.

#[path = "support/mod.rs"]
mod support;

use std::{process::ExitCode, time::Duration};

use reqwest::redirect::Policy;
use tokio::time::Instant;
use tower::ServiceExt;
use tower_outbound::{
    ApiKey, BoxError, Quota, Report,
    adapter::Reqwest,
    preset,
    stack::{StackBuilder, StackService},
};
use tower_outbound_examples::{no_arguments, run};

use self::support::{MockConfig, MockResponse, MockServer, Trigger};

const HELP: &str = "\
Makes the same 12 calls three times: with reqwest alone, with reqwest below a preset's layers, and with a ready client
over reqwest.

Usage: cargo run --example wrap_reqwest

  --help  this text

The mock server on loopback allows 5 requests per second and fails two requests. The program takes about 10 seconds.

Exit status: 0, 1 if a guarantee was broken, 2 for an invalid argument, 130 after Ctrl-C.
";

const KEY: &str = "s3cret-of-the-example";
const CALLS: usize = 12;
const QUOTA: (usize, Duration) = (5, Duration::from_secs(1));

// ---- Code to copy --------------------------------------------------------------------------------------------------

/// Sends reqwest's requests through a preset's layers. Clones are cheap, and share the limiter and the connections.
#[derive(Clone)]
struct ApiClient(StackService<Reqwest>);

impl ApiClient {
    /// Returns the reqwest client that builds requests, such as `client.reqwest().post(url).json(&email)`.
    ///
    /// Pass the request builder to `execute`. `RequestBuilder::send` would bypass the layers.
    fn reqwest(&self) -> &reqwest::Client {
        self.0.get_ref().get_ref()
    }

    async fn execute(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, BoxError> {
        let request = http::Request::<reqwest::Body>::try_from(request.build()?)?;
        let response = self.0.clone().oneshot(request).await?;
        // `response.url()` of the result is a placeholder, because the real URL may contain the key.
        Ok(response.map(reqwest::Body::wrap).into())
    }
}

// --------------------------------------------------------------------------------------------------------------------

/// Configures a preset with the quota and the key of the service. All other settings are defaults.
fn preset(server: &MockServer) -> Result<StackBuilder, BoxError> {
    let quota =
        Quota::new(QUOTA.0 as u32, QUOTA.1)?.with_burst(2)?.with_margin(Duration::from_millis(200))?;
    Ok(preset::realtime_messaging(&server.base_url())?.with_api_key(ApiKey::new(KEY)?).with_quota(quota))
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
            Ok(response) if response.status().is_success() => succeeded += 1,
            Ok(response) => println!("  item {number:>2}: {}", response.status()),
            Err(error) => println!("  item {number:>2}: {}", error.without_url()),
        }
    }
    summary("1. reqwest alone", &server, succeeded, start);

    let server = mock_server().await?;
    let builder = reqwest::Client::builder().no_proxy().user_agent("example/1.0");
    let client = ApiClient(preset(&server)?.reqwest(builder.redirect(Policy::none()).build()?)?);
    let start = Instant::now();
    let mut succeeded = 0;
    for number in 1..=CALLS {
        let request = client.reqwest().get(format!("{}/v1/items/{number}", server.base_url()));
        // Each call runs in its own task, as in a server's handler. The clones share the limiter and the connections.
        let client = client.clone();
        let response = tokio::spawn(async move { client.execute(request).await }).await??;
        if let Some(report) =
            response.extensions().get::<Report>().filter(|report| report.attempt_count() > 1)
        {
            println!("  item {number:>2}: {} attempts", report.attempt_count());
        }
        succeeded += usize::from(response.error_for_status()?.text().await?.contains("\"status\":200"));
    }
    summary("2. ApiClient: the same calls through a preset", &server, succeeded, start);
    check(&server, succeeded)?;

    let server = mock_server().await?;
    let client =
        preset(&server)?.client_with_service(Reqwest::new(reqwest::Client::builder().no_proxy())?)?;
    let start = Instant::now();
    let mut succeeded = 0;
    for number in 1..=CALLS {
        let response = client.get(&format!("/v1/items/{number}")).await?;
        succeeded += usize::from(response.status().is_success());
        response.into_body().collect(64 * 1024).await?;
    }
    summary("3. A ready client over reqwest", &server, succeeded, start);
    check(&server, succeeded)
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
