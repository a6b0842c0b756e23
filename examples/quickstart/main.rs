//! The three presets at work: against stand-ins on loopback, or against the real services whose addresses and
//! keys are in the environment. `--help` says more.

mod load;
mod progress;
mod promises;
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
use tower_outbound_examples::{Interrupt, arguments, chain, exit_code, reject, report, unknown};

const HELP: &str = "\
Calls three services through the presets of tower-outbound and prints what happened.

Usage: cargo run --example quickstart [-- --log]

  --log   write the crate's log to stderr: one event a call, and one for every pause that a server requests
  --help  this text

Without further settings the services are stand-ins on loopback. They check the key, hold us to the documented
limit in a sliding window, and now and then answer 503, answer 429 with Retry-After, or drop the connection.
It takes about 7 seconds.

A service whose base URL is in the environment is called itself, by three GETs and nothing else:

  CURRENCY_RATES_BASE_URL       CURRENCY_RATES_API_KEY       CURRENCY_RATES_PATH      (/v1/resources)
  EMAIL_DELIVERY_BASE_URL       EMAIL_DELIVERY_API_KEY       EMAIL_DELIVERY_PATH      (/v1/resources)
  REALTIME_MESSAGING_BASE_URL   REALTIME_MESSAGING_API_KEY   REALTIME_MESSAGING_PATH  (the base URL itself)

Exit status: 0, 1 if a guarantee was broken or a service never responded, 2 for a wrong argument or setting, 130 after
Ctrl-C, which prints the table of the calls so far.
";

#[tokio::main]
async fn main() -> ExitCode {
    let mut log = false;
    for argument in arguments(HELP) {
        match argument.as_str() {
            "--log" => log = true,
            _ => unknown(&argument, "--log or --help"),
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
        let who = if target.stand_in.is_some() { "a stand-in" } else { "the service itself" };
        writeln!(out, "{:<20} {who} at {}, {}", target.name, target.base_url, target.limit)?;
    }
    writeln!(out)?;
    // Dropping the load stops it before the table is printed.
    let interrupted = tokio::select! {
        done = load::run(targets) => done.map(|()| None)?,
        error = progress::show(targets, started) => return Err(error.into()),
        code = interrupt.received() => Some(code),
    };
    let calls: Vec<_> = targets.iter().map(|target| target.calls()).collect();
    progress::clear(&mut out)?;

    let ledgers: Vec<_> =
        targets.iter().map(|target| target.stand_in.as_ref().map(support::StandIn::ledger)).collect();
    let columns: Vec<_> = targets
        .iter()
        .zip(&calls)
        .zip(&ledgers)
        .map(|((target, calls), ledger)| table::Column { name: &target.name, calls, ledger: ledger.as_ref() })
        .collect();
    out.write_all(table::summary(&columns).as_bytes())?;
    out.write_all(table::failures(&columns).as_bytes())?;

    if let Some(code) = interrupted {
        let count: usize = calls.iter().map(Vec::len).sum();
        writeln!(out, "{}{count} calls had ended, no guarantee was checked", interrupt.title())?;
        return Ok(code);
    }
    let broken: Vec<_> = columns.iter().flat_map(promises::broken).collect();
    let verdict = if broken.is_empty() { "every guarantee was kept" } else { "guarantees were broken:" };
    writeln!(out, "\n{:.1} s, {verdict}", started.elapsed().as_secs_f64())?;
    broken.iter().for_each(report);
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
