//! Runs a hyper server in a separate process. The server then shares no allocator, thread or runtime with the clients.

use std::{
    convert::Infallible,
    env, fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};

use crate::{BoxError, runtime};

/// The body of every response.
pub const BODY: &str =
    r#"{"base":"EUR","date":"2025-01-01","rates":{"USD":1.0353,"GBP":0.8292,"CHF":0.9412}}"#;

/// The command-line argument that makes the bench executable run as the server process.
const SERVE: &str = "--serve";

/// The server process. The process ends when this value is dropped or the bench ends.
pub struct ServerProcess {
    process: Child,
    /// The server's address for HTTP/1.1.
    pub http1: SocketAddr,
    /// The server's address for HTTP/2 with prior knowledge.
    pub http2: SocketAddr,
}

impl fmt::Debug for ServerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerProcess")
            .field("http1", &self.http1)
            .field("http2", &self.http2)
            .finish_non_exhaustive()
    }
}

impl ServerProcess {
    /// Starts this executable a second time, as the server. The executable's `main` must call [`serve`] first.
    pub fn start() -> Result<Self, BoxError> {
        let mut process = Command::new(env::current_exe()?)
            .arg(SERVE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let (http1, http2) = line.trim().split_once(' ').ok_or("the server process did not start")?;
        Ok(Self { process, http1: http1.parse()?, http2: http2.parse()? })
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// Runs the server until the parent process ends. Returns `false` immediately if this process is not the server.
pub fn serve() -> Result<bool, BoxError> {
    if env::args().nth(1).as_deref() != Some(SERVE) {
        return Ok(false);
    }
    thread::spawn(|| {
        // The parent process writes nothing to stdin. When the parent ends, stdin closes.
        _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    runtime(1)?.block_on(async {
        let (http1, http2) =
            (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
        println!("{} {}", http1.local_addr()?, http2.local_addr()?);
        io::stdout().flush()?;
        loop {
            tokio::select! {
                accepted = http1.accept() => {
                    let io = without_delay(accepted?.0)?;
                    let connection = conn::http1::Builder::new().serve_connection(io, service_fn(respond));
                    tokio::spawn(connection);
                }
                accepted = http2.accept() => {
                    let io = without_delay(accepted?.0)?;
                    let builder = conn::http2::Builder::new(TokioExecutor::new());
                    tokio::spawn(builder.serve_connection(io, service_fn(respond)));
                }
            }
        }
    })
}

fn without_delay(stream: TcpStream) -> io::Result<TokioIo<TcpStream>> {
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(stream))
}

async fn respond(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::from(BODY));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
