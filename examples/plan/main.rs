//! Plans the use of a quota: simulates limiters in front of a server that enforces the quota. Prints a table and
//! charts, and draws a plot. `--help` describes the options.

mod arguments;
mod drawing;
mod figures;
mod simulation;
mod strategies;
mod terminal;
mod tokens;

use std::{
    io::{self, Write},
    process::ExitCode,
    thread,
};

use tower_outbound::BoxError;
use tower_outbound_examples::{arguments, exit_code, reject};

use self::arguments::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse(arguments(&arguments::help())).unwrap_or_else(|error| reject(error));
    exit_code(plan(&arguments))
}

fn plan(arguments: &Arguments) -> Result<(), BoxError> {
    let runs: Result<Vec<_>, BoxError> = thread::scope(|scope| {
        let start =
            |strategy: &&'static _| scope.spawn(|| simulation::run(strategy, arguments, drawing::COLUMNS));
        let threads: Vec<_> = arguments.strategies.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a simulation panicked")?).collect()
    });
    let runs = runs?;
    let report = terminal::report(arguments, &runs);
    drawing::draw(arguments, &runs)?;
    Ok(io::stdout().write_all(report.as_bytes())?)
}
