//! Calls three services through the presets, and prints a table of the calls. `--help` shows more.
//!
//! The services are mock servers on loopback, or the real services whose base URLs and keys are in the environment.

mod guarantees;
mod load;
mod progress;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod targets;

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
};

use tokio::time::Instant;
use tower_outbound::BoxError;
use tower_outbound_examples::{Interrupt, arguments, chain, exit_code, reject, reject_unknown, report};

const HELP: &str = "\
Calls three services through the presets of tower-outbound, and prints a table of the calls.

Usage: cargo run --example quickstart [-- --log]

  --log   write the crate's log to stderr: one event per call, and one event per pause that a server requests
  --help  this text

By default the services are mock servers on loopback. They check the key and enforce the documented limit in a sliding
window. Now and then they respond 503, respond 429 with Retry-After, or drop the connection. The program takes about
7 seconds.

If the base URL of a service is in the environment, the program sends three GETs to the real service instead:

  CURRENCY_RATES_BASE_URL       CURRENCY_RATES_API_KEY       CURRENCY_RATES_PATH      (/v1/resources)
  EMAIL_DELIVERY_BASE_URL       EMAIL_DELIVERY_API_KEY       EMAIL_DELIVERY_PATH      (/v1/resources)
  REALTIME_MESSAGING_BASE_URL   REALTIME_MESSAGING_API_KEY   REALTIME_MESSAGING_PATH  (no path)

Exit status: 0, 1 if a guarantee was broken or a service never responded, 2 for an invalid argument or setting, 130
after Ctrl-C, which prints the table of the calls so far.
";

#[tokio::main]
async fn main() -> ExitCode {
    let mut log = false;
    for argument in arguments(HELP) {
        match argument.as_str() {
            "--log" => log = true,
            _ => reject_unknown(&argument, "--log or --help"),
        }
    }
    let mut interrupt = Interrupt::listen();
    if log {
        tracing_subscriber::fmt().with_writer(io::stderr).init();
    }
    let targets = match targets::all().await {
        Ok(targets) => targets.map(Arc::new),
        Err(error) => reject(chain(&*error)),
    };
    run(&targets, &mut interrupt).await.unwrap_or_else(|error| exit_code(Err(error)))
}

/// Calls the targets, prints the table, and reports each guarantee that was broken.
async fn run(targets: &[Arc<targets::Target>], interrupt: &mut Interrupt) -> Result<ExitCode, BoxError> {
    let started = Instant::now();
    let mut out = io::stdout();
    for target in targets {
        let kind = if target.mock.is_some() { "a mock server" } else { "the real service" };
        writeln!(out, "{:<20} {kind} at {}, {}", target.name, target.base_url, target.limit)?;
    }
    writeln!(out)?;
    // `select!` drops the load when Ctrl-C arrives, so no call runs while the table is printed.
    let interrupted = tokio::select! {
        done = load::run(targets) => done.map(|()| None)?,
        error = progress::show(targets, started) => return Err(error.into()),
        code = interrupt.received() => Some(code),
    };
    let calls: Vec<_> = targets.iter().map(|target| target.calls()).collect();
    progress::clear(&mut out)?;

    let logs: Vec<_> =
        targets.iter().map(|target| target.mock.as_ref().map(support::MockServer::request_log)).collect();
    let columns: Vec<_> = targets
        .iter()
        .zip(&calls)
        .zip(&logs)
        .map(|((target, calls), log)| table::Column { name: &target.name, calls, server: log.as_ref() })
        .collect();
    out.write_all(table::summary(&columns).as_bytes())?;
    out.write_all(table::failures(&columns).as_bytes())?;

    if let Some(code) = interrupted {
        let count: usize = calls.iter().map(Vec::len).sum();
        writeln!(out, "{}{count} calls have finished, the guarantees were not checked", interrupt.title())?;
        return Ok(code);
    }
    let broken: Vec<_> = columns.iter().flat_map(guarantees::broken).collect();
    let verdict = if broken.is_empty() { "all guarantees held" } else { "guarantees were broken:" };
    writeln!(out, "\n{:.1} s, {verdict}", started.elapsed().as_secs_f64())?;
    broken.iter().for_each(report);
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
