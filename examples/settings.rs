//! Reads the configuration of services from TOML and the environment, calls one of them, and shows the errors for
//! mistakes in the configuration.
//!
//! The crate `config` merges the TOML and the environment. The service is a mock server on loopback. If the argument is
//! the path of a file, such as `src/preset/sample.toml`, the program makes no calls. It prints that file with all
//! defaults:
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
use support::{MockConfig, MockServer};
use tower_outbound::{BoxError, preset::StackConfig};
use tower_outbound_examples::{arguments, exit_code, reject_unknown, run};

const HELP: &str = "\
Reads the configuration of services from TOML and the environment, calls one of them, and shows the errors of mistakes.

Usage: cargo run --example settings [-- FILE]

  FILE    only print this file with all defaults, such as src/preset/sample.toml, and make no calls
  --help  this text

Environment variables override the file: APP_SERVICES__RATES__TIMEOUT__TOTAL=15s sets `services.rates.timeout.total`.
Without FILE, the service is a mock server on loopback. The program takes less than a second.

Exit status: 0, 1 if FILE cannot be read or a value is invalid, 2 for an invalid argument, 130 after Ctrl-C.
";

// Unknown fields are not rejected here, because each variable with the prefix is one, such as `APP_ENV`. `StackConfig`
// rejects those in a service.
#[derive(Debug, Serialize, Deserialize)]
struct Services {
    services: BTreeMap<String, StackConfig>,
}

impl Services {
    /// Reads the configuration from TOML text. Environment variables override the text.
    fn read(text: &str) -> Result<Self, BoxError> {
        let merged = Config::builder()
            .add_source(File::from_str(text, FileFormat::Toml))
            .add_source(Environment::with_prefix("APP").prefix_separator("_").separator("__"))
            .build();
        Ok(merged.map_err(|error| without_source_line(text, error))?.try_deserialize()?)
    }
}

/// Converts the error to a message with the number of the invalid line. The line's text may contain the key, so the
/// message omits the text.
fn without_source_line(text: &str, error: ConfigError) -> BoxError {
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
        reject_unknown(option, "the path of a file, or --help");
    }
    if let Some(more) = arguments.next() {
        reject_unknown(&more, "at most one path");
    }
    match path {
        Some(path) => exit_code(show(&path)),
        None => run(demonstrate(), support::partial_summary).await,
    }
}

/// Prints the configuration file with all defaults.
fn show(path: &str) -> Result<(), BoxError> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot open `{path}`: {error}"))?;
    let services = Services::read(&text).map_err(|error| format!("{path}: {error}"))?;
    println!("{}", toml::to_string(&services)?);
    Ok(())
}

async fn demonstrate() -> Result<(), BoxError> {
    let service = MockServer::start(MockConfig::new("rates", "k3y")).await?;
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
        return Err("the printed configuration contains the key".into());
    }

    let rates = services.services["rates"].client()?;
    let response = rates.get("/v1/latest").await?;
    println!("-- the response\n{}\n", response.status());
    if !response.status().is_success() {
        return Err("the mock server rejected the key".into());
    }

    println!("-- mistakes and their errors");
    for mistake in [
        "timeout.body_idle = 30",
        "retry.max_atempts = 5",
        "limit.quota = \"0/60s\"",
        "timeout.attempt = \"2m\"",
    ] {
        let rejected = Services::read(&format!("{text}{mistake}\n").replace("limit.quota = [", "#"))
            .and_then(|services| {
                let client = services.services["rates"].client();
                client.map_err(|error| error.within("services.rates").into())
            });
        match rejected {
            Ok(_) => return Err(format!("the invalid setting was accepted: {mistake}").into()),
            Err(error) => println!("{mistake}\n    {error}"),
        }
    }
    Ok(())
}
