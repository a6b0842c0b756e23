//! Measures a limiter of your own choosing, with nothing behind it. `--help` says more.

mod arguments;
mod load;
mod progress;
mod report;
mod stamp;

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
};

use tokio::time::Instant;
use tower_outbound::{
    BoxError,
    limit::{Limiter, SlidingWindow, Snapshot, TokenBucket},
};
use tower_outbound_examples::{Interrupt, arguments, exit_code, reject};

use self::{
    arguments::{Arguments, Strategy},
    load::{Load, Run},
};

// One thread, so that the order and the processor's time are the limiter's and not the scheduler's.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments =
        Arguments::parse(arguments(&arguments::help()).into_iter()).unwrap_or_else(|error| reject(error));
    let measured = match arguments.strategy {
        Strategy::Token => {
            measure(&arguments, TokenBucket::new(arguments.quota), TokenBucket::snapshot).await
        }
        Strategy::Window => {
            measure(&arguments, SlidingWindow::new(arguments.quota), SlidingWindow::snapshot).await
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
    let load = Arc::new(Load::new(Instant::now(), arguments.lasting));
    // `select!` drops the progress line before the report is printed.
    let run: Run = tokio::select! {
        run = load::run(&load, arguments.tasks, &limiter, interrupt.received()) => run?,
        error = progress::show(load.start(), || snapshot(&limiter)) => return Err(error.into()),
    };
    progress::clear()?;
    let (text, kept) = report::of(arguments, &run);
    print(&text)?;
    if let Some(code) = run.interrupted {
        print(&format!("{}{} permits were granted\n", interrupt.title(), run.grants.len()))?;
        return Ok(code);
    }
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(text: &str) -> Result<(), BoxError> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}
