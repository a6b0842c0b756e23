//! Reads the configuration of services from TOML and the environment, calls one of them, and shows the errors of mistakes.
//!
//! The crate `config` merges the two. The service is a stand-in on loopback. With the path of a file, such as
//! `src/preset/sample.toml`, the program prints that file with all its defaults instead, and calls nothing:
//!
//! ```sh
//! cargo run --example settings -- --help
//! cargo run --example settings
//! cargo run --example settings -- src/preset/sample.toml
//! APP_SERVICES__RATES__TIMEOUT__TOTAL=15s cargo run --example settings
//! ```

#[path = "support/mod.rs"]
mod support;

use std::{collections::BTreeMap, fs, process::ExitCode};

use config::{Config, ConfigError, Environment, File, FileFormat};
use serde::{Deserialize, Serialize};
use support::{Plan, StandIn};
use tower_outbound::{BoxError, preset::StackConfig};
use tower_outbound_examples::{arguments, exit_code, run, unknown};

const HELP: &str = "\
Reads the configuration of services from TOML and the environment, calls one of them, and shows the errors of mistakes.

Usage: cargo run --example settings [-- FILE]

  FILE    read this file instead, such as src/preset/sample.toml: print it with all defaults, and call nothing
  --help  this text

APP_SERVICES__RATES__TIMEOUT__TOTAL=15s and the like in the environment override `services.rates.timeout.total`.
Without FILE the service is a stand-in on loopback. It takes less than a second.

Exit status: 0, 1 if FILE cannot be read or a value is wrong, 2 for a wrong argument, 130 after Ctrl-C.
";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Services {
    services: BTreeMap<String, StackConfig>,
}

impl Services {
    /// Merges the environment's variables over the file.
    fn read(text: &str) -> Result<Self, BoxError> {
        let merged = Config::builder()
            .add_source(File::from_str(text, FileFormat::Toml))
            .add_source(Environment::with_prefix("APP").prefix_separator("_").separator("__"))
            .build();
        Ok(merged.map_err(|error| without_its_line(text, error))?.try_deserialize()?)
    }
}

/// Shows the number of a wrong line, and not the line, because it may be the one with the key.
fn without_its_line(text: &str, error: ConfigError) -> BoxError {
    let ConfigError::FileParse { cause, .. } = error else { return error.into() };
    let Some(error) = cause.downcast_ref::<toml::de::Error>() else { return "not valid TOML".into() };
    let at = error.span().map_or(0, |span| span.start);
    let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    format!("line {line}: {}", error.message()).into()
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = arguments(HELP).into_iter();
    let path = arguments.next();
    if let Some(option) = path.as_ref().filter(|path| path.starts_with('-')) {
        unknown(option, "the path of a file, or --help");
    }
    if let Some(more) = arguments.next() {
        unknown(&more, "at most one path");
    }
    match path {
        Some(path) => exit_code(show(&path)),
        None => run(demonstrate(), support::so_far).await,
    }
}

/// Prints a file with all its defaults.
fn show(path: &str) -> Result<(), BoxError> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot open `{path}`: {error}"))?;
    let services = Services::read(&text).map_err(|error| format!("{path}: {error}"))?;
    println!("{}", toml::to_string(&services)?);
    Ok(())
}

async fn demonstrate() -> Result<(), BoxError> {
    let service = StandIn::start(Plan::new("rates", "k3y")).await?;
    let text = format!(
        "[services.rates]\n\
         preset = \"currency_rates\"\n\
         base_url = \"{}\"\n\
         api_key = \"k3y\"\n\
         limit.quota = [\"10/1s\", \"600/60s, burst 100\"]\n\
         retry.backoff = {{ base = \"50ms\", jitter = \"100%\" }}\n",
        service.base_url()
    );
    println!("-- the file\n{text}");
    let services = Services::read(&text)?;
    let shown = toml::to_string(&services)?;
    println!("-- with all defaults\n{shown}");
    if shown.contains("k3y") {
        return Err("the configuration shows the key".into());
    }

    let rates = services.services["rates"].client()?;
    let response = rates.get("/v1/latest").await?;
    println!("-- the response\n{}\n", response.status());
    if !response.status().is_success() {
        return Err("the stand-in rejects the right key".into());
    }

    println!("-- mistakes and their errors");
    for mistake in [
        "timeout.body_idle = 30",
        "retry.max_atempts = 5",
        "limit.quota = \"0/60s\"",
        "timeout.attempt = \"2m\"",
    ] {
        let refused = Services::read(&format!("{text}{mistake}\n").replace("limit.quota = [", "#")).and_then(
            |services| {
                let client = services.services["rates"].client();
                client.map_err(|error| error.within("services.rates").into())
            },
        );
        match refused {
            Ok(_) => return Err(format!("{mistake} was accepted").into()),
            Err(error) => println!("{mistake}\n    {error}"),
        }
    }
    Ok(())
}
