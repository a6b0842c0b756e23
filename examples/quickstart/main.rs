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
    error::Error,
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
};

use tokio::time::Instant;
use tower_outbound::BoxError;

const HELP: &str = "\
Calls three services through the presets of tower-outbound and prints what happened.

Usage: cargo run --example quickstart [-- --log]

  --log   write the crate's log to stderr: a line a call, and one for every pause asked for
  --help  this text

Without further settings the services are stand-ins on loopback. They check the key, hold us to the documented
limit in a sliding window, and now and then answer 503, answer 429 with Retry-After, or drop the connection.
It takes about 7 seconds.

A service whose base URL is in the environment is called itself, by three GETs and nothing else:

  CURRENCY_RATES_BASE_URL       CURRENCY_RATES_API_KEY       CURRENCY_RATES_PATH      (/v1/resources)
  EMAIL_DELIVERY_BASE_URL       EMAIL_DELIVERY_API_KEY       EMAIL_DELIVERY_PATH      (/v1/resources)
  REALTIME_MESSAGING_BASE_URL   REALTIME_MESSAGING_API_KEY   REALTIME_MESSAGING_PATH  (the base URL itself)

Exit status: 0, 1 when a promise was broken or a service never answered, 2 when the settings are wrong.
";

#[tokio::main]
async fn main() -> ExitCode {
    let mut log = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--help" | "-h" => return done(io::stdout().write_all(HELP.as_bytes()).map_err(Into::into)),
            "--log" => log = true,
            _ => {
                eprintln!("quickstart: unknown argument `{argument}`, see --help");
                return ExitCode::from(2);
            }
        }
    }
    if log {
        tracing_subscriber::fmt().with_writer(io::stderr).init();
    }
    let targets = match targets::all().await {
        Ok(targets) => targets.map(Arc::new),
        Err(error) => {
            eprintln!("quickstart: {}", chain(&*error));
            return ExitCode::from(2);
        }
    };
    match run(&targets).await {
        Ok(broken) if broken.is_empty() => ExitCode::SUCCESS,
        Ok(broken) => {
            for promise in broken {
                eprintln!("quickstart: {promise}");
            }
            ExitCode::FAILURE
        }
        Err(error) => done(Err(error)),
    }
}

/// Calls, shows, and gives the promises that were broken.
async fn run(targets: &[Arc<targets::Target>]) -> Result<Vec<String>, BoxError> {
    let started = Instant::now();
    let mut out = io::stdout();
    for target in targets {
        let who = if target.stand_in.is_some() { "a stand-in" } else { "the service itself" };
        writeln!(out, "{:<20} {who} at {}, {}", target.name, target.base_url, target.limit)?;
    }
    writeln!(out)?;
    // Dropped, and with it stopped, before the table is printed.
    let calls = tokio::select! {
        calls = load::run(targets) => calls?,
        error = progress::show(targets, started) => return Err(error.into()),
    };
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

    let broken: Vec<_> = columns.iter().flat_map(promises::broken).collect();
    let verdict = if broken.is_empty() { "every promise was kept" } else { "not as promised:" };
    writeln!(out, "\n{:.1} s, {verdict}", started.elapsed().as_secs_f64())?;
    Ok(broken)
}

fn done(result: Result<(), BoxError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, each of which tells its own part alone.
fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
