//! Reads the settings of services from TOML and the environment, calls one of them, and shows the errors of mistakes.
//!
//! The service is a stand-in on loopback. With the path of a file, such as `src/settings/sample.toml`, the program prints
//! that file with all its defaults instead, and calls nothing:
//!
//! ```sh
//! cargo run --example settings -- --help
//! cargo run --example settings
//! cargo run --example settings -- src/settings/sample.toml
//! RATES_TIMEOUT_TOTAL=5s cargo run --example settings
//! ```

#[path = "support/mod.rs"]
mod support;

use std::{collections::BTreeMap, fs, process::ExitCode};

use serde::{Deserialize, Serialize};
use support::{Plan, StandIn};
use tower_outbound::{BoxError, settings::ServiceSettings};
use tower_outbound_examples::{arguments, exit_code, run, unknown};

const HELP: &str = "\
Reads the settings of services from TOML and the environment, calls one of them, and shows the errors of four mistakes.

Usage: cargo run --example settings [-- FILE]

  FILE    read this file instead, such as src/settings/sample.toml: print it with all defaults, and call nothing
  --help  this text

RATES_TIMEOUT_TOTAL=5s and the like in the environment override the setting of `services.rates`. Without FILE the
service is a stand-in on loopback. It takes less than a second.

Exit status: 0, 1 if FILE cannot be read or a setting is wrong, 2 for a wrong argument, 130 after Ctrl-C.
";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    services: BTreeMap<String, ServiceSettings>,
}

impl Config {
    /// The file's settings, below those of the environment: `RATES_…` for `services.rates`.
    fn read(text: &str) -> Result<Self, BoxError> {
        let mut config: Self = toml::from_str(text).map_err(|error| without_its_line(text, &error))?;
        for (name, service) in &mut config.services {
            *service = std::mem::take(service).with_env(&name.to_ascii_uppercase().replace('-', "_"))?;
        }
        Ok(config)
    }

    /// With every default written out.
    fn effective(&self) -> Result<String, BoxError> {
        let mut services = BTreeMap::new();
        for (name, service) in &self.services {
            let effective = service.effective().map_err(|error| error.within(&format!("services.{name}")))?;
            services.insert(name.clone(), effective);
        }
        Ok(toml::to_string(&Self { services })?)
    }
}

/// What is wrong and in which line, but not the line: with a misspelt name it could be the one with the key.
fn without_its_line(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start);
    let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    format!("line {line}: {}", error.message())
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
    let config = Config::read(&text).map_err(|error| format!("{path}: {error}"))?;
    println!("{}", config.effective().map_err(|error| format!("{path}: {error}"))?);
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
    let config = Config::read(&text)?;
    let shown = config.effective()?;
    println!("-- the effective settings\n{shown}");
    if shown.contains("k3y") {
        return Err("the settings show the key".into());
    }

    let rates = config.services["rates"].client()?;
    let response = rates.get("/v1/latest").await?;
    println!("-- the response\n{}\n", response.status());
    if !response.status().is_success() {
        return Err("the stand-in rejects the right key".into());
    }

    println!("-- mistakes and their errors");
    for mistake in
        ["timeout.total = 30", "retry.max_atempts = 5", "limit.quota = \"0/60s\"", "timeout.attempt = \"2m\""]
    {
        let refused =
            Config::read(&format!("{text}{mistake}\n").replace("limit.quota = [", "#")).and_then(|config| {
                let client = config.services["rates"].client();
                client.map_err(|error| error.within("services.rates").into())
            });
        match refused {
            Ok(_) => return Err(format!("{mistake} was accepted").into()),
            Err(error) => println!("{mistake}\n    {error}"),
        }
    }
    Ok(())
}
