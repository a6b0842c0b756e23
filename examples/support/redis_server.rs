//! Starts a redis-server on loopback for examples and tests.
#![allow(dead_code, reason = "each example and test uses a part of it")]

use std::{
    fs, io,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

/// The number of checks after which the start of redis-server is reported as failed. The checks are 10 ms apart, and
/// even a busy machine starts a server within a minute.
const STARTUP_CHECKS: u32 = 6_000;

/// The text that redis-server logs when it accepts connections.
const READY: &str = "Ready to accept connections";

/// A running redis-server without persistence. Dropping this value kills the server.
pub(crate) struct RedisServer {
    child: Child,
    port: u16,
    directory: PathBuf,
    arguments: Vec<String>,
}

impl RedisServer {
    /// Starts a redis-server on a free port with additional arguments. `{port}` in an argument is replaced by the port.
    pub(crate) fn start(arguments: &[&str]) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("tower-outbound-redis-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let mut tries = 0;
        loop {
            let port = free_port()?;
            let with_port = |argument: &&str| argument.replace("{port}", &port.to_string());
            let arguments: Vec<_> = arguments.iter().map(with_port).collect();
            match run(port, &directory, &arguments) {
                Ok(child) => return Ok(Self { child, port, directory, arguments }),
                // Another process has taken the port, so the next attempt uses another port.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < 10 => tries += 1,
                Err(error) => {
                    let _ = fs::remove_dir_all(&directory);
                    return Err(error);
                }
            }
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Restarts the server on the same port. The server's data is lost.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        self.kill()?;
        self.child = run(self.port, &self.directory, &self.arguments)?;
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Returns a free port outside the ephemeral range.
///
/// The operating system could assign an ephemeral port to a connection of another test. This could happen before the
/// server binds the port, or while the server restarts.
pub(crate) fn free_port() -> io::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Each process starts its search at a different port, so that concurrent processes rarely try the same port.
    let first = std::process::id().wrapping_mul(37);
    for _ in 0..1_000 {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (number % 20_000) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::other("found no free port for redis-server"))
}

fn run(port: u16, directory: &Path, arguments: &[String]) -> io::Result<Child> {
    let log = directory.join("log");
    let _ = fs::remove_file(&log);
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
    command.args(["--logfile", "log"]);
    if !arguments.iter().any(|argument| argument == "--port") {
        command.args(["--port", &port.to_string()]);
    }
    command.args(arguments).current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            io::ErrorKind::NotFound,
            "redis-server was not found in PATH: `bash .ci/test` installs it",
        ),
        _ => error,
    })?;
    // The server's log proves that this server is ready. A connection to the port could reach a server of another
    // process.
    for _ in 0..STARTUP_CHECKS {
        let ended = child.try_wait()?;
        let logged = fs::read_to_string(&log).unwrap_or_default();
        match ended {
            None if logged.contains(READY) => return Ok(child),
            None => thread::sleep(Duration::from_millis(10)),
            Some(_) if logged.contains("already in use") => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("port {port} is taken")));
            }
            Some(status) => {
                return Err(io::Error::other(format!(
                    "redis-server ended during startup: {status}\n{logged}"
                )));
            }
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    let seconds = STARTUP_CHECKS / 100;
    Err(io::Error::other(format!("redis-server does not listen on port {port} after {seconds} s")))
}
