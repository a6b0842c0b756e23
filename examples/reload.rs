//! Changes the settings of a running client whenever its configuration file changes. An invalid file changes nothing.
//!
//! The program edits the file itself, and calls a mock server on loopback. `--help` shows more.
//!
//! ```sh
//! cargo run --example reload
//! ```

#[path = "support/mod.rs"]
mod support;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    time::Duration,
};

use support::{MockConfig, MockServer};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tower_outbound::{BoxError, Client, preset::StackConfig};
use tower_outbound_examples::{no_arguments, run};

const HELP: &str = "\
Changes the settings of a running client whenever its configuration file changes. An invalid file changes nothing.

Usage: cargo run --example reload

  --help  this text

The program edits the file itself, in a temporary folder, and calls a mock server on loopback. It takes about 3 seconds.

Exit status: 0, 1 if a call fails or an edit has another effect, 2 for an invalid argument, 130 after Ctrl-C.
";

/// The time between two reads of the file. An application reads it every few seconds, or after a signal.
const INTERVAL: Duration = Duration::from_millis(50);

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(HELP);
    run(demonstrate(), support::partial_summary).await
}

fn parse(text: &str) -> Result<StackConfig, BoxError> {
    // The error has the number of the line, but not its text, which may contain a key.
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        format!("line {line}: {}", error.message()).into()
    })
}

/// Changes the client to the settings of the file after each edit. `applied` is the text that the client uses. Sends
/// the outcome of each edit. A text with an error is tried again, because a file that it names may appear later.
async fn reload_after_edits(
    path: &Path,
    mut applied: String,
    client: &Client,
    outcomes: watch::Sender<String>,
) {
    loop {
        sleep(INTERVAL).await;
        // A comparison of the text needs no resolution of modification times, and follows a symbolic link.
        let Some(text) = fs::read_to_string(path).ok().filter(|text| *text != applied) else { continue };
        let reloaded = parse(&text).and_then(|config| Ok(config.reconfigure(client)?));
        let outcome = match &reloaded {
            Ok(()) => "reloaded".to_owned(),
            Err(error) => format!("kept the old settings: {error}"),
        };
        if reloaded.is_ok() {
            applied = text;
        } else if outcome == *outcomes.borrow() {
            continue;
        }
        outcomes.send_replace(outcome);
    }
}

/// A configuration file in the folder for temporary files.
struct ConfigFile(PathBuf);

impl ConfigFile {
    /// Replaces the file at once, so that the reader never sees a part of the text.
    fn write(&self, text: &str) -> io::Result<()> {
        let new = self.0.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(new, &self.0)
    }
}

impl Drop for ConfigFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

async fn demonstrate() -> Result<(), BoxError> {
    let service = MockServer::start(MockConfig::new("orders", "k3y")).await?;
    let text = format!(
        "base_url = \"{}\"\napi_key = \"k3y\"\nlimit.quota = \"2/1s, burst 1\"\n",
        service.base_url()
    );
    let file = ConfigFile(env::temp_dir().join(format!("tower-outbound-reload-{}.toml", process::id())));
    file.write(&text)?;
    let client = parse(&text)?.client()?;
    let (sender, outcomes) = watch::channel(String::new());
    tokio::select! {
        () = reload_after_edits(&file.0, text.clone(), &client, sender) => Ok(()),
        edited = edit(&file, &text, &client, outcomes) => edited,
    }?;
    println!("the server received {} requests", service.request_log().requests.len());
    Ok(())
}

async fn edit(
    file: &ConfigFile,
    text: &str,
    client: &Client,
    mut outcomes: watch::Receiver<String>,
) -> Result<(), BoxError> {
    call(client, "2/1s, burst 1").await?;
    for (line, expected) in [
        ("limit.quota = \"50/1s\"", "reloaded"),
        (
            "limit.quota = \"50/1s\"\ntimeout.attempt = \"2m\"",
            "kept the old settings: timeout.attempt: invalid",
        ),
        ("limit.quota = \"0/1s\"", "kept the old settings: line 3: invalid quota limit `0`"),
        ("transport.max_connections = 9", "kept the old settings: transport: invalid"),
        ("limit.quota = []", "reloaded"),
    ] {
        file.write(&text.replace("limit.quota = \"2/1s, burst 1\"", line))?;
        expect(&line.replace('\n', ", "), expected, &mut outcomes).await?;
    }
    call(client, "no quota").await?;

    // A deployment may create the file of a key after the file of the settings.
    let key = ConfigFile(file.0.with_extension("key"));
    file.write(&text.replace("api_key = \"k3y\"", &format!("api_key_file = {:?}", key.0)))?;
    expect("api_key_file", "kept the old settings: api_key_file: invalid", &mut outcomes).await?;
    key.write("k3y")?;
    expect("the file of the key", "reloaded", &mut outcomes).await
}

/// Waits for the outcome of an edit, and prints it.
async fn expect(edit: &str, expected: &str, outcomes: &mut watch::Receiver<String>) -> Result<(), BoxError> {
    outcomes.changed().await?;
    let outcome = outcomes.borrow_and_update().clone();
    println!("{edit}\n    {outcome}");
    if !outcome.starts_with(expected) {
        return Err(format!("unexpected outcome of `{edit}`: {outcome}").into());
    }
    Ok(())
}

/// Makes a few calls, and prints how long they take.
async fn call(client: &Client, quota: &str) -> Result<(), BoxError> {
    let start = Instant::now();
    for _ in 0..5 {
        client.get("/v1/orders").await?.error_for_status().await?.text().await?;
    }
    println!("5 calls with {quota}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
