//! Composes the layers in a tower stack over hyper-util's client, with tower's concurrency limit inside the stack.
//! Prints the effect of each layer on one call. `--help` shows more.
#[path = "support/mod.rs"]
mod support;

use std::{process::ExitCode, time::Duration};

use http_body_util::Empty;
use hyper::{Request, body::Bytes};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use support::{MockConfig, MockResponse, MockServer, Trigger};
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt};
use tower_outbound::attempt_span::AttemptSpanLayer;
use tower_outbound::auth::{AuthLayer, Origin};
use tower_outbound::limit::{LocalLimiter, RateLimitLayer};
use tower_outbound::{
    ApiKey, BoxError, Quota, Report,
    call::Outcome,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::{AttemptTimeoutLayer, TotalTimeoutLayer},
};
use tower_outbound_examples::{no_arguments, run};

const HELP: &str = "\
Composes single layers in a tower stack, and prints the effect of each layer on one call.

Usage: cargo run --example compose

  --help  this text

A mock server on loopback responds 503 to the first attempt. The program takes about 1 second.

Exit status: 0, 1 if the call failed, 2 for an invalid argument, 130 after Ctrl-C.
";

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(HELP);
    run(call(), support::partial_summary).await
}

async fn call() -> Result<(), BoxError> {
    // The mock server responds 503 to the first attempt, so the retry layer makes a second attempt.
    let faults = vec![(Trigger::Nth(1), MockResponse::Unavailable)];
    let server = MockServer::start(MockConfig { faults, ..MockConfig::new("compose", "s3cret") }).await?;
    // The quota refills one permit per second, so that the retry must wait for a permit.
    let limiter = LocalLimiter::paced_window(Quota::per_second(2)?.with_burst(1)?.without_margin());
    let service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TotalTimeoutLayer::new(Duration::from_secs(30))?)
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(limiter.clone()))
        .layer(AttemptSpanLayer::new())
        .layer(AuthLayer::new(ApiKey::new("s3cret")?, Origin::parse(&server.base_url())?)?)
        .layer(AttemptTimeoutLayer::new(Duration::from_secs(5))?)
        .concurrency_limit(8)
        .service(Client::builder(TokioExecutor::new()).build_http());

    let start = Instant::now();
    let request = Request::get(format!("{}/v1/resources", server.base_url())).body(Empty::<Bytes>::new())?;
    println!("{} {}", request.method(), request.uri());
    let response = service.oneshot(request).await?;
    println!("{} after {} ms\n", response.status(), start.elapsed().as_millis());

    let report = response.extensions().get::<Report>().ok_or("the response has no report")?;
    let id = report.request_id().ok_or("the report has no request id")?;
    println!("request id  {} on each of {} attempts", id.to_str()?, report.attempt_count());
    for attempt in report.attempts() {
        let Some(status) = attempt.outcome.and_then(Outcome::status) else {
            return Err("an attempt got no response".into());
        };
        let queued = attempt.queued.as_millis();
        println!("limit       attempt {} waited {queued} ms for its permit", attempt.number);
        print!("retry       attempt {}: {status}", attempt.number);
        match attempt.delay {
            Some(delay) => println!(", retried after {} ms", delay.as_millis()),
            None => println!(", which is the response of the call"),
        }
    }
    println!("limit       {} permits granted in total", limiter.snapshot().granted);
    for request in server.request_log().requests {
        let has_key = request.header("authorization") == "Bearer s3cret";
        println!(
            "auth        request {} arrived with{} the key",
            request.number,
            if has_key { "" } else { "out" }
        );
    }
    Ok(())
}
