//! Draws the pictures of the documentation. `--help` describes them.

#[path = "../plan/arguments.rs"]
#[allow(dead_code, reason = "the pictures use the default arguments only")]
mod arguments;
mod call;
#[path = "../plan/figures.rs"]
#[allow(dead_code, reason = "the pictures use the columns only")]
mod figures;
#[path = "../../benches/shared/picture.rs"]
mod picture;
#[path = "../plan/simulation.rs"]
#[allow(dead_code, reason = "the pictures use the run only")]
mod simulation;
mod stack;
#[path = "../plan/strategies.rs"]
#[allow(dead_code, reason = "the pictures have colors of their own")]
mod strategies;
#[path = "../plan/tokens.rs"]
#[allow(dead_code, reason = "the pictures have no quota of tokens")]
mod tokens;
mod window;

use std::{fs, path::PathBuf, process::ExitCode};

use tower_outbound::BoxError;
use tower_outbound_examples::{arguments, exit_code, options, reject};

const HELP: &str = "\
Draws the pictures of the documentation.

Usage: cargo run --example pictures -- [OPTIONS]

  --folder PATH  the folder of the files  [src/guide/pictures]
  --help         this text

Files:
  stack.svg      the layers, and the path of a request through them
  call.svg       the timeline of a call with a retry
  window.svg     requests in the last 60 s: governor's plain bucket, token bucket, paced window, sliding window

The figures come from calls and simulations on virtual time, so each run writes the same files. The program takes less
than a second.

Exit status: 0, 1 if a file cannot be written, 2 for an invalid argument, 130 after Ctrl-C.
";

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/guide/pictures");

// The clock is paused, so that calls and simulations run on virtual time.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> ExitCode {
    let options = options(arguments(HELP), &["--folder"]).unwrap_or_else(|error| reject(error));
    exit_code(write(options.get("--folder").map_or(FOLDER, String::as_str).into()).await)
}

async fn write(folder: PathBuf) -> Result<(), BoxError> {
    fs::create_dir_all(&folder)?;
    let pictures = [("stack", stack::svg()?), ("call", call::svg().await?), ("window", window::svg()?)];
    for (name, svg) in pictures {
        let path = folder.join(name).with_extension("svg");
        fs::write(&path, svg).map_err(|error| format!("cannot write `{}`: {error}", path.display()))?;
        println!("{name}.svg");
    }
    Ok(())
}
