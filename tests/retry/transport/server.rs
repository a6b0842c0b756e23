//! A server with a scripted behavior for each connection. The server counts the requests that it processes.

use std::{
    io,
    sync::{Arc, Mutex},
};

use http::Method;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Notify,
    task::JoinHandle,
};

use super::{
    frames::{self, Step},
    stack::{self, Wire},
};

/// The server's behavior on one connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Behavior {
    /// Responds to every request.
    Respond,
    /// Responds to one request, closes the connection, and waits until the client has also closed the connection.
    RespondThenClose,
    /// Responds to one request. Closes the connection without reading the next request when that request arrives.
    RespondThenIgnore,
    /// Processes one request, and closes the connection without a response.
    CloseAfterRequest,
    /// Processes one request, and resets the connection within the response headers.
    ResetInHeaders,
    /// Processes one request, and closes the connection within the response body.
    CloseInBody,
    /// Runs the next list of HTTP/2 steps for each request. After the last list, responds to every request.
    Steps(&'static [&'static [Step]]),
}

impl Behavior {
    pub(crate) fn responds_once(self) -> bool {
        matches!(self, Self::RespondThenClose | Self::RespondThenIgnore)
    }
}

/// A test server that stops when it is dropped.
pub(crate) struct Server {
    url: String,
    log: Arc<Log>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
pub(crate) struct Log {
    processed: Mutex<Vec<Method>>,
    connections: Mutex<usize>,
    ended: Notify,
}

impl Log {
    pub(crate) fn process(&self, method: Method) {
        self.processed.lock().unwrap().push(method);
    }
}

impl Server {
    /// Starts a server with one behavior for each connection. Further connections get [`Behavior::Respond`].
    pub(crate) async fn start(wire: Wire, behaviors: &'static [Behavior]) -> Self {
        Self::over(TcpListener::bind("127.0.0.1:0").await.unwrap(), wire, behaviors)
    }

    pub(crate) fn over(listener: TcpListener, wire: Wire, behaviors: &'static [Behavior]) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Log::default());
        let server_log = Arc::clone(&log);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = {
                    let mut connections = server_log.connections.lock().unwrap();
                    *connections += 1;
                    *connections
                };
                let behavior = behaviors.get(number - 1).copied().unwrap_or(Behavior::Respond);
                let log = Arc::clone(&server_log);
                tokio::spawn(async move {
                    stream.set_nodelay(true).unwrap();
                    // The result is ignored, because the tests check how the client sees the end of a connection.
                    let _ = match wire {
                        Wire::Http1 => serve_http1(stream, behavior, &log).await,
                        Wire::Http2 => frames::serve(stream, behavior, &log).await,
                    };
                    log.ended.notify_one();
                });
            }
        });
        Self { url, log, accepting }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the number of processed requests with this method.
    pub(crate) fn processed(&self, method: &Method) -> usize {
        self.log.processed.lock().unwrap().iter().filter(|processed| *processed == method).count()
    }

    pub(crate) fn connections(&self) -> usize {
        *self.log.connections.lock().unwrap()
    }

    /// Waits until the server has ended a connection.
    pub(crate) async fn connection_ended(&self) {
        stack::within(self.log.ended.notified()).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve_http1(mut stream: TcpStream, behavior: Behavior, log: &Log) -> io::Result<()> {
    match behavior {
        Behavior::CloseAfterRequest => process(&mut stream, log).await?,
        Behavior::ResetInHeaders => {
            process(&mut stream, log).await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le").await?;
            stream.set_zero_linger()?;
        }
        Behavior::CloseInBody => {
            process(&mut stream, log).await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\na part").await?;
        }
        _ => loop {
            process(&mut stream, log).await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
            if behavior.responds_once() {
                return end_connection(stream, behavior).await;
            }
        },
    }
    Ok(())
}

/// Ends a connection after the first response.
pub(crate) async fn end_connection(mut stream: TcpStream, behavior: Behavior) -> io::Result<()> {
    match behavior {
        Behavior::RespondThenClose => {
            stream.shutdown().await?;
            while stream.read(&mut [0; 1024]).await? > 0 {}
        }
        // Closing a socket with unread bytes resets the connection.
        Behavior::RespondThenIgnore => _ = stream.peek(&mut [0]).await?,
        _ => {}
    }
    Ok(())
}

/// Reads one request to the end of its body, and counts the request as processed.
async fn process(stream: &mut TcpStream, log: &Log) -> io::Result<()> {
    let mut read = Vec::new();
    loop {
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = String::from_utf8_lossy(&read);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                log.process(head.split(' ').next().unwrap().parse().unwrap());
                return Ok(());
            }
        }
    }
}

/// Returns a bound socket that does not listen. Its port refuses connections, and no other process can bind that port.
pub(crate) fn refusing() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}
