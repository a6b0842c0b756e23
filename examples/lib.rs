//! Handles arguments, errors and Ctrl-C for all examples.

use std::{
    collections::HashMap,
    env,
    error::Error,
    fmt,
    future::{self, Future},
    io::{self, Write},
    iter,
    path::Path,
    process::{self, ExitCode},
    thread,
};

use tokio::{runtime, sync::watch, time::Instant};

/// Returns the arguments of the program. Prints `help` and exits with 0 if an argument is `--help` or `-h`.
pub fn arguments(help: &str) -> Vec<String> {
    let arguments: Vec<_> =
        env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    if arguments.iter().any(|argument| matches!(argument.as_str(), "--help" | "-h")) {
        // Write errors are ignored, because a reader such as `head` may close the pipe early.
        let _ = io::stdout().write_all(help.as_bytes());
        process::exit(0);
    }
    arguments
}

/// Returns the values of the options by their names. Options have the form `--name value` or `--name=value`.
///
/// # Errors
///
/// Returns an error if `names` does not contain the name of an option, or if an option has no value.
pub fn options(
    arguments: impl IntoIterator<Item = String>,
    names: &[&'static str],
) -> Result<HashMap<&'static str, String>, ArgumentError> {
    let mut options = HashMap::new();
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (argument.as_str(), None),
        };
        let Some(known) = names.iter().find(|known| **known == name) else {
            let expected = names.join(", ");
            return Err(ArgumentError(format!("unknown argument `{name}`: expected {expected} or --help")));
        };
        // If the next argument is also an option, this option has no value.
        let value = value.or_else(|| arguments.next_if(|next| !next.starts_with("--")));
        options.insert(*known, value.ok_or_else(|| ArgumentError(format!("{name} has no value")))?);
    }
    Ok(options)
}

/// The error message for an invalid argument, with the argument's name, its value, and the valid values.
#[derive(Debug)]
pub struct ArgumentError(String);

impl ArgumentError {
    /// Creates the error of a value that is not one of the `expected` values.
    pub fn new(name: &str, value: &str, expected: &str) -> Self {
        Self(format!("{name} `{value}`: expected {expected}"))
    }

    /// Wraps the error of a parser, which already lists the valid values.
    pub fn invalid(name: &str, value: &str, error: &dyn Error) -> Self {
        Self(format!("{name} `{value}`: {error}"))
    }
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Rejects every argument except `--help`, which prints `help`.
pub fn no_arguments(help: &str) {
    if let Some(argument) = arguments(help).first() {
        reject_unknown(argument, "no argument but --help");
    }
}

/// Reports an unknown argument and the valid ones on stderr, and exits with 2.
pub fn reject_unknown(argument: &str, expected: &str) -> ! {
    reject(format_args!("unknown argument `{argument}`: expected {expected}"))
}

/// Reports an invalid argument or setting on stderr, and exits with 2.
pub fn reject(error: impl fmt::Display) -> ! {
    report(error);
    process::exit(2);
}

/// Reports an error on stderr, after the name of this program.
pub fn report(error: impl fmt::Display) {
    let path = env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_stem().unwrap_or_default().to_string_lossy();
    eprintln!("{name}: {error}");
}

/// Returns the messages of an error and its sources, joined by colons.
pub fn chain(error: &dyn Error) -> String {
    let causes = iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Runs `program` until it ends or until Ctrl-C. Returns the exit code: 0 for success, 1 for an error, 130 after
/// Ctrl-C.
///
/// Ctrl-C drops `program` and prints the partial summary.
pub async fn run<P>(program: P, partial_summary: impl FnOnce() -> String) -> ExitCode
where
    P: Future<Output = Result<(), Box<dyn Error + Send + Sync>>>,
{
    let mut interrupt = Interrupt::listen();
    let code = tokio::select! {
        result = program => return exit_code(result),
        code = interrupt.received() => code,
    };
    println!("{}{}", interrupt.title(), partial_summary());
    code
}

/// Returns 0, or reports the error on stderr and returns 1.
pub fn exit_code(result: Result<(), Box<dyn Error + Send + Sync>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Listens for Ctrl-C and, on Unix, SIGTERM. Create the value before the program's first output, because signals that
/// arrive before its creation are missed.
///
/// The program handles the first signal. A second signal ends the process immediately, even if the program is still
/// shutting down, for example because its runtime waits for a DNS lookup.
#[derive(Debug)]
pub struct Interrupt {
    start: Instant,
    /// The exit code of the first signal, or 0 if no signal has arrived.
    code: watch::Receiver<u8>,
}

impl Interrupt {
    /// Starts to listen for signals on a dedicated thread.
    pub fn listen() -> Self {
        let (sender, code) = watch::channel(0);
        // If the signal handler cannot be installed, the operating system ends the program on Ctrl-C.
        if let Ok(runtime) = runtime::Builder::new_current_thread().enable_io().build() {
            let signals = {
                let _context = runtime.enter();
                Signals::new()
            };
            thread::spawn(move || {
                runtime.block_on(async move {
                    let Ok(mut signals) = signals else { return };
                    let _ = sender.send(signals.next().await);
                    process::exit(signals.next().await.into())
                });
            });
        }
        Self { start: Instant::now(), code }
    }

    /// Waits for the first signal. Returns the shell's exit code for the signal: 130 for Ctrl-C, 143 for SIGTERM.
    ///
    /// Once a signal was received, every further call of this method returns the same code immediately.
    pub async fn received(&mut self) -> ExitCode {
        match self.code.wait_for(|code| *code != 0).await.map(|code| *code) {
            Ok(code) => ExitCode::from(code),
            Err(_) => future::pending().await,
        }
    }

    /// Returns the beginning of a partial summary, such as `interrupted after 1.2 s: `.
    pub fn title(&self) -> String {
        format!("\ninterrupted after {:.1} s: ", self.start.elapsed().as_secs_f64())
    }
}

#[cfg(unix)]
struct Signals([tokio::signal::unix::Signal; 2]);

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]))
    }

    /// Waits for a signal and returns the signal's exit code.
    async fn next(&mut self) -> u8 {
        let Self([interrupt, terminate]) = self;
        tokio::select! {
            _ = interrupt.recv() => 130,
            _ = terminate.recv() => 143,
        }
    }
}

#[cfg(windows)]
struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    fn new() -> io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    /// Waits for Ctrl-C and returns the exit code of Ctrl-C.
    async fn next(&mut self) -> u8 {
        self.0.recv().await;
        130
    }
}
