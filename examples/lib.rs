//! What the examples share: arguments, errors and Ctrl-C.

use std::{
    env,
    error::Error,
    fmt,
    future::Future,
    io::{self, Write},
    iter,
    path::Path,
    process::{self, ExitCode},
};

use tokio::time::Instant;

/// Returns the arguments of this program. Prints `help` and exits with 0 if one of them is `--help` or `-h`.
pub fn arguments(help: &str) -> Vec<String> {
    let arguments: Vec<_> =
        env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    if arguments.iter().any(|argument| matches!(argument.as_str(), "--help" | "-h")) {
        // A reader that closes the pipe early has read enough.
        let _ = io::stdout().write_all(help.as_bytes());
        process::exit(0);
    }
    arguments
}

/// Checks that there are no arguments: prints `help` on `--help`, and rejects any other argument.
pub fn no_arguments(help: &str) {
    if let Some(argument) = arguments(help).first() {
        unknown(argument, "no argument but --help");
    }
}

/// Reports an unknown argument and the valid ones on stderr, and exits with 2.
pub fn unknown(argument: &str, expected: &str) -> ! {
    reject(format_args!("unknown argument `{argument}`: expected {expected}"))
}

/// Reports a wrong argument or setting on stderr and exits with 2.
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

/// Returns an error and its sources, joined by colons.
pub fn chain(error: &dyn Error) -> String {
    let causes = iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Runs `program` until it ends or until Ctrl-C. Returns the exit code: 0, 1 for an error, 130 after Ctrl-C.
///
/// On Ctrl-C drops `program` and prints what `so_far` returns.
pub async fn run<P>(program: P, so_far: impl FnOnce() -> String) -> ExitCode
where
    P: Future<Output = Result<(), Box<dyn Error + Send + Sync>>>,
{
    let mut interrupt = Interrupt::listen();
    let code = tokio::select! {
        result = program => return exit_code(result),
        code = interrupt.received() => code,
    };
    println!("{}{}", interrupt.title(), so_far());
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

/// Listens for Ctrl-C and, on Unix, SIGTERM. Create it before the first output: it misses earlier signals.
#[derive(Debug)]
pub struct Interrupt {
    start: Instant,
    #[cfg(unix)]
    signals: io::Result<[tokio::signal::unix::Signal; 2]>,
}

impl Interrupt {
    /// Starts to listen. Call it inside of a tokio runtime.
    pub fn listen() -> Self {
        Self {
            start: Instant::now(),
            #[cfg(unix)]
            signals: unix::signals(),
        }
    }

    /// Waits for the signal. Returns the shell's exit code for it: 130 for Ctrl-C, 143 for SIGTERM.
    pub async fn received(&mut self) -> ExitCode {
        #[cfg(unix)]
        let code = unix::received(&mut self.signals).await;
        #[cfg(not(unix))]
        let code = tokio::signal::ctrl_c().await.map_or(1, |()| 130);
        ExitCode::from(code)
    }

    /// Such as `interrupted after 1.2 s: `, the begin of a partial summary.
    pub fn title(&self) -> String {
        format!("\ninterrupted after {:.1} s: ", self.start.elapsed().as_secs_f64())
    }
}

#[cfg(unix)]
mod unix {
    use std::{future, io};

    use tokio::signal::unix::{Signal, SignalKind, signal};

    pub(super) fn signals() -> io::Result<[Signal; 2]> {
        Ok([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?])
    }

    pub(super) async fn received(signals: &mut io::Result<[Signal; 2]>) -> u8 {
        // Without a handler the system's default ends the program.
        let Ok([interrupt, terminate]) = signals else { return future::pending().await };
        tokio::select! {
            _ = interrupt.recv() => 130,
            _ = terminate.recv() => 143,
        }
    }
}
