//! A real redis-server on loopback, of its own.
#![allow(dead_code, reason = "each example and test uses its own part of it")]

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

/// Killed when it is dropped. It keeps nothing over a restart.
pub(crate) struct RedisServer {
    child: Child,
    port: u16,
    directory: PathBuf,
    arguments: Vec<String>,
}

impl RedisServer {
    /// On a free port, with these arguments besides, in which `{port}` stands for it.
    pub(crate) fn start(arguments: &[&str]) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("tower-outbound-redis-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory)?;
        // Given back at once: nobody else is given it so soon.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let fill = |argument: &&str| argument.replace("{port}", &port.to_string());
        let arguments: Vec<_> = arguments.iter().map(fill).collect();
        let child = run(port, &directory, &arguments)?;
        Ok(Self { child, port, directory, arguments })
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

    /// On the same port, with nothing of what it knew.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        self.kill()?;
        self.child = run(self.port, &self.directory, &self.arguments)?;
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn run(port: u16, directory: &PathBuf, arguments: &[String]) -> io::Result<Child> {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
    if !arguments.iter().any(|argument| argument == "--port") {
        command.args(["--port", &port.to_string()]);
    }
    command.args(arguments).current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            io::ErrorKind::NotFound,
            "redis-server is not installed: `apt-get install redis-server`, or `brew install redis`",
        ),
        _ => error,
    })?;
    for _ in 0..500 {
        if TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_ok() {
            return Ok(child);
        }
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("redis-server ended as it began: {status}")));
        }
        thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    Err(io::Error::other(format!("redis-server does not listen on port {port} after 5 s")))
}
