//! Measures the throughput of a limiter alone, without an HTTP client. `--help` shows more.

mod arguments;
mod grant_time;
mod load;
mod progress;
mod report;

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
};

use tokio::time::Instant;
use tower_outbound::{
    BoxError,
    limit::{Limiter, LocalLimiter, Snapshot},
};
use tower_outbound_examples::{Interrupt, arguments, exit_code, reject};

use self::{
    arguments::{Arguments, Strategy},
    load::{Load, Run},
};

// The runtime has one thread, so that its scheduler affects neither the order of the grants nor the CPU time.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse(arguments(&arguments::help())).unwrap_or_else(|error| reject(error));
    let measured = match arguments.strategy {
        Strategy::Token => {
            measure(&arguments, LocalLimiter::token_bucket(arguments.quota), LocalLimiter::snapshot).await
        }
        Strategy::Window => {
            measure(&arguments, LocalLimiter::sliding_window(arguments.quota), LocalLimiter::snapshot).await
        }
    };
    measured.unwrap_or_else(|error| exit_code(Err(error)))
}

async fn measure<L: Limiter + Send + Sync + 'static>(
    arguments: &Arguments,
    limiter: L,
    snapshot: impl Fn(&L) -> Snapshot,
) -> Result<ExitCode, BoxError> {
    let mut interrupt = Interrupt::listen();
    print(&arguments.title())?;
    let load = Arc::new(Load::new(Instant::now(), arguments.duration));
    // `select!` stops the progress output before the program prints the report.
    let run: Run = tokio::select! {
        run = load::run(&load, arguments.tasks, &limiter, interrupt.received()) => run?,
        error = progress::show(load.start(), || snapshot(&limiter)) => return Err(error.into()),
    };
    progress::clear()?;
    let (text, within_quota) = report::create(arguments, &run);
    print(&text)?;
    if let Some(code) = run.interrupted {
        print(&format!("{}{} permits were granted\n", interrupt.title(), run.grants.len()))?;
        return Ok(code);
    }
    Ok(if within_quota { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(text: &str) -> Result<(), BoxError> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}
