//! Shows how code that uses reqwest moves its client below this crate's layers.
//!
//! Each of three steps calls a stand-in server on loopback. It checks a key, allows 5 requests per second, fails now
//! and then, and counts:
//!
//! 1. reqwest alone, as it is commonly used.
//! 2. `ApiClient`, the code to copy: takes a `reqwest::Request`, sends it through a preset, returns a
//!    `reqwest::Response`.
//! 3. A ready client over reqwest, for new code.
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

use self::support::{Plan, Scripted, StandIn, When};

const HELP: &str = "\
Makes the same 12 calls three times: with reqwest alone, with reqwest below a preset's layers, and with a ready client
over reqwest.

Usage: cargo run --example wrap_reqwest

  --help  this text

The server is a stand-in on loopback that allows 5 requests a second and fails twice. It takes about 10 seconds.

Exit status: 0, 1 if a guarantee was broken, 2 for a wrong argument, 130 after Ctrl-C.
";

const KEY: &str = "s3cret-of-the-example";
const CALLS: usize = 12;
const QUOTA: (usize, Duration) = (5, Duration::from_secs(1));

// ---- The piece to paste --------------------------------------------------------------------------------------------

/// Sends reqwest's requests through a preset's layers. Cheap to clone; clones share limit and connections.
#[derive(Clone)]
struct ApiClient(StackService<Reqwest>);

impl ApiClient {
    /// Builds requests as ever: `client.reqwest().post(url).json(&letter)`. Don't `send` them: `execute` does.
    fn reqwest(&self) -> &reqwest::Client {
        self.0.get_ref().get_ref()
    }

    async fn execute(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, BoxError> {
        let request = http::Request::<reqwest::Body>::try_from(request.build()?)?;
        let response = self.0.clone().oneshot(request).await?;
        // `response.url()` is a placeholder from here on: the real one may have the key in it.
        Ok(response.map(reqwest::Body::wrap).into())
    }
}

// --------------------------------------------------------------------------------------------------------------------

/// A preset for a service of your own: its quota and its key; the rest has defaults.
fn preset(server: &StandIn) -> Result<StackBuilder, BoxError> {
    let quota =
        Quota::new(QUOTA.0 as u32, QUOTA.1)?.with_burst(2)?.with_margin(Duration::from_millis(200))?;
    Ok(preset::realtime_messaging(&server.base_url())?.with_api_key(ApiKey::new(KEY)?).with_quota(quota))
}

async fn stand_in() -> Result<StandIn, BoxError> {
    let mut plan = Plan::new("stand-in", KEY);
    plan.quota = Some(QUOTA);
    plan.faults = vec![(When::Nth(3), Scripted::Unavailable), (When::Nth(7), Scripted::Dropped)];
    Ok(StandIn::start(plan).await?)
}

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(HELP);
    run(steps(), support::so_far).await
}

async fn steps() -> Result<(), BoxError> {
    println!("{CALLS} GETs against a server that lets 5 into a second and fails twice.\n");

    let server = stand_in().await?;
    let bare = reqwest::Client::builder().no_proxy().build()?;
    let start = Instant::now();
    let mut good = 0;
    for number in 1..=CALLS {
        let sent = bare.get(format!("{}/v1/items/{number}", server.base_url())).bearer_auth(KEY).send().await;
        match sent {
            Ok(response) if response.status().is_success() => good += 1,
            Ok(response) => println!("  item {number:>2}: {}", response.status()),
            Err(error) => println!("  item {number:>2}: {}", error.without_url()),
        }
    }
    summary("1. reqwest alone", &server, good, start);

    let server = stand_in().await?;
    let builder = reqwest::Client::builder().no_proxy().user_agent("example/1.0");
    let client = ApiClient(preset(&server)?.reqwest(builder.redirect(Policy::none()).build()?)?);
    let start = Instant::now();
    let mut good = 0;
    for number in 1..=CALLS {
        let request = client.reqwest().get(format!("{}/v1/items/{number}", server.base_url()));
        // Each call runs in its own task, as in a server's handler. Clones share the limiter and the connections.
        let client = client.clone();
        let response = tokio::spawn(async move { client.execute(request).await }).await??;
        if let Some(report) =
            response.extensions().get::<Report>().filter(|report| report.attempt_count() > 1)
        {
            println!("  item {number:>2}: {} attempts", report.attempt_count());
        }
        good += usize::from(response.error_for_status()?.text().await?.contains("\"status\":200"));
    }
    summary("2. ApiClient: the same calls through a preset", &server, good, start);
    check(&server, good)?;

    let server = stand_in().await?;
    let client =
        preset(&server)?.client_with_service(Reqwest::new(reqwest::Client::builder().no_proxy())?)?;
    let start = Instant::now();
    let mut good = 0;
    for number in 1..=CALLS {
        let response = client.get(&format!("/v1/items/{number}")).await?;
        good += usize::from(response.status().is_success());
        response.into_body().collect(64 * 1024).await?;
    }
    summary("3. A ready client over reqwest", &server, good, start);
    check(&server, good)
}

fn summary(title: &str, server: &StandIn, good: usize, start: Instant) {
    let ledger = server.ledger();
    println!("{title}: {good} of {CALLS} answered with 200, in {:.1} s", start.elapsed().as_secs_f64());
    println!(
        "  the server saw {} requests, {} over its limit, {} without the key; by status: {:?}\n",
        ledger.requests.len(),
        ledger.violations(),
        ledger.unauthorized(),
        ledger.statuses(),
    );
}

fn check(server: &StandIn, good: usize) -> Result<(), BoxError> {
    let ledger = server.ledger();
    match good == CALLS && ledger.violations() == 0 && ledger.unauthorized() == 0 {
        true => Ok(()),
        false => Err("a guarantee was broken".into()),
    }
}
