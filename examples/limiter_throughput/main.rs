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

use self::{
    arguments::{Arguments, Strategy},
    load::{Load, Run},
};

// One thread, so that the order and the processor's time are the limiter's and not the scheduler's.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => return done(print(&arguments::help()).map(|()| ExitCode::SUCCESS)),
        Err(error) => {
            eprintln!("limiter_throughput: {error}, see --help");
            return ExitCode::from(2);
        }
    };
    done(match arguments.strategy {
        Strategy::Token => {
            measure(&arguments, TokenBucket::new(arguments.quota), TokenBucket::snapshot).await
        }
        Strategy::Window => {
            measure(&arguments, SlidingWindow::new(arguments.quota), SlidingWindow::snapshot).await
        }
    })
}

async fn measure<L: Limiter<Acquire: Send> + Send + Sync + 'static>(
    arguments: &Arguments,
    limiter: L,
    snapshot: impl Fn(&L) -> Snapshot,
) -> Result<ExitCode, BoxError> {
    print(&arguments.title())?;
    let load = Arc::new(Load::new(Instant::now(), arguments.lasting));
    // Dropped, and with it stopped, before the report is printed.
    let run: Run = tokio::select! {
        run = load::run(&load, arguments.tasks, &limiter) => run?,
        error = progress::show(load.start(), || snapshot(&limiter)) => return Err(error.into()),
    };
    progress::clear()?;
    let (text, kept) = report::of(arguments, &run);
    print(&text)?;
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(text: &str) -> Result<(), BoxError> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

fn done(result: Result<ExitCode, BoxError>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("limiter_throughput: {error}");
        ExitCode::FAILURE
    })
}
