//! Plans the use of a quota: simulates limiters in front of a server that enforces the quota. Prints a table and
//! charts, and draws a plot. `--help` describes the options.

mod arguments;
mod drawing;
mod figures;
mod simulation;
mod strategies;
mod terminal;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use tower_outbound::BoxError;
use tower_outbound_examples::{arguments, exit_code, reject};

use self::arguments::Arguments;

// The clock is paused, so that the simulation runs on virtual time.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> ExitCode {
    let arguments = Arguments::parse(arguments(&arguments::help())).unwrap_or_else(|error| reject(error));
    exit_code(plan(&arguments).await)
}

async fn plan(arguments: &Arguments) -> Result<(), BoxError> {
    let mut runs = Vec::new();
    for strategy in &arguments.strategies {
        runs.push(simulation::run(strategy, arguments).await?);
    }
    let report = terminal::report(arguments, &runs);
    drawing::draw(arguments, &runs)?;
    Ok(io::stdout().write_all(report.as_bytes())?)
}
