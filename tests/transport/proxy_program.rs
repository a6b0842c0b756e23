//! Starts the proxies of the distribution: tinyproxy and microsocks. `bash .ci/test` installs them.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
};

use super::*;

/// The user and the password that a proxy requires.
pub(crate) type Login<'a> = Option<(&'a str, &'a str)>;

/// The number of checks, 10 ms apart, after which the start of a proxy is reported as failed.
const STARTUP_CHECKS: u32 = 6_000;

/// A running proxy on loopback. Dropping this value kills the proxy.
pub(crate) struct ProxyProgram {
    child: Child,
    address: SocketAddr,
    file: PathBuf,
}

impl ProxyProgram {
    /// Starts an HTTP proxy.
    pub(crate) fn tinyproxy(login: Login<'_>) -> Self {
        Self::start(|port, file| {
            let login =
                login.map_or(String::new(), |(user, password)| format!("BasicAuth {user} {password}\n"));
            fs::write(file, format!("Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 100\n{login}"))
                .unwrap();
            let mut command = Command::new("tinyproxy");
            command.arg("-d").arg("-c").arg(file);
            command
        })
    }

    /// Starts a SOCKS5 proxy.
    pub(crate) fn microsocks(login: Login<'_>) -> Self {
        Self::start(|port, _| {
            let mut command = Command::new("microsocks");
            command.args(["-i", "127.0.0.1", "-p", &port.to_string()]);
            if let Some((user, password)) = login {
                command.args(["-u", user, "-P", password]);
            }
            command
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn start(command: impl Fn(u16, &PathBuf) -> Command) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..10 {
            let number = NEXT.fetch_add(1, Relaxed);
            let name = format!("tower-outbound-proxy-{}-{number}", std::process::id());
            let file = std::env::temp_dir().join(name);
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
            let mut command = command(address.port(), &file);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let child = command.spawn().unwrap_or_else(|error| {
                panic!("{:?} does not start: {error}. `bash .ci/test` installs it", command.get_program())
            });
            let mut started = Self { child, address, file };
            if started.is_ready() {
                return started;
            }
            // Another process has taken the port, so the next try uses another port.
        }
        panic!("the proxy did not start");
    }

    fn is_ready(&mut self) -> bool {
        for _ in 0..STARTUP_CHECKS {
            let is_open = TcpStream::connect(self.address).is_ok();
            thread::sleep(Duration::from_millis(10));
            match self.child.try_wait().unwrap() {
                Some(_) => return false,
                None if is_open => return true,
                None => {}
            }
        }
        false
    }
}

impl Drop for ProxyProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.file);
    }
}

/// Returns a free port outside the ephemeral range, from which the operating system could take it before the proxy does.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(41);
    loop {
        let number = first.wrapping_add(NEXT.fetch_add(1, Relaxed));
        let port = 10_000 + (number % 20_000) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
