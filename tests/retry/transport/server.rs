//! A server that follows a script, one act for each connection, byte by byte, and counts what it processed.

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
    frames::{self, Frame},
    stack::{self, Wire},
};

/// What becomes of a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Act {
    /// Every request is answered.
    Scripted,
    /// One is answered, then the connection is closed, and nothing more happens before the client has closed it too.
    AnswerAndClose,
    /// One is answered, then the connection is closed when the test says so.
    AnswerAndLeave,
    /// One is answered; when the next one is there, the connection is closed without a look at it.
    AnswerAndIgnore,
    /// Closed before anything is read.
    Leave,
    /// Closed after a request was read and processed.
    Process,
    /// Reset in the middle of the answer's head.
    ResetInHead,
    /// Closed in the middle of the answer's body.
    CloseInBody,
    /// HTTP/2: what is said to the first request and so on; those after the last are answered.
    Say(&'static [&'static [Frame]]),
}

/// Stops when it is dropped.
pub(crate) struct Server {
    url: String,
    log: Arc<Log>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
pub(crate) struct Log {
    processed: Mutex<Vec<Method>>,
    connections: Mutex<usize>,
    leave: Notify,
    closed: Notify,
}

impl Log {
    pub(crate) fn process(&self, method: Method) {
        self.processed.lock().unwrap().push(method);
    }
}

impl Server {
    /// The first connection gets the first act and so on, those after the last are answered.
    pub(crate) async fn start(wire: Wire, acts: &'static [Act]) -> Self {
        Self::over(TcpListener::bind("127.0.0.1:0").await.unwrap(), wire, acts)
    }

    pub(crate) fn over(listener: TcpListener, wire: Wire, acts: &'static [Act]) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Log::default());
        let keeping = Arc::clone(&log);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = {
                    let mut connections = keeping.connections.lock().unwrap();
                    *connections += 1;
                    *connections
                };
                let act = acts.get(number - 1).copied().unwrap_or(Act::Scripted);
                let log = Arc::clone(&keeping);
                tokio::spawn(async move {
                    stream.set_nodelay(true).unwrap();
                    // How a connection ends is the client's to tell.
                    let _ = match wire {
                        Wire::Http1 => http1(stream, act, &log).await,
                        Wire::Http2 => frames::serve(stream, act, &log).await,
                    };
                    log.closed.notify_one();
                });
            }
        });
        Self { url, log, accepting }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// How many requests of this method were processed, by the server's own count.
    pub(crate) fn processed(&self, method: &Method) -> usize {
        self.log.processed.lock().unwrap().iter().filter(|processed| *processed == method).count()
    }

    pub(crate) fn connections(&self) -> usize {
        *self.log.connections.lock().unwrap()
    }

    /// Lets [`Act::AnswerAndLeave`] go on.
    pub(crate) fn leave(&self) {
        self.log.leave.notify_one();
    }

    /// Waits for the end of a connection's act, which is the end of the connection.
    pub(crate) async fn closed(&self) {
        stack::within(self.log.closed.notified()).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn http1(mut stream: TcpStream, act: Act, log: &Log) -> io::Result<()> {
    match act {
        Act::Leave => {}
        Act::Process => process(&mut stream, log).await?,
        Act::ResetInHead => {
            process(&mut stream, log).await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le").await?;
            stream.set_zero_linger()?;
        }
        Act::CloseInBody => {
            process(&mut stream, log).await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\na part").await?;
        }
        _ => loop {
            process(&mut stream, log).await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
            if act != Act::Scripted {
                return end(stream, act, log).await;
            }
        },
    }
    Ok(())
}

/// After the first answer.
pub(crate) async fn end(mut stream: TcpStream, act: Act, log: &Log) -> io::Result<()> {
    match act {
        Act::AnswerAndClose => {
            stream.shutdown().await?;
            while stream.read(&mut [0; 1024]).await? > 0 {}
        }
        Act::AnswerAndLeave => log.leave.notified().await,
        // What is not read when a socket is closed makes it a reset.
        Act::AnswerAndIgnore => _ = stream.peek(&mut [0]).await?,
        _ => {}
    }
    Ok(())
}

/// Reads one request to the end of its body, and counts it.
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

/// Bound and not listening: it refuses, and no other process can be given the port meanwhile.
pub(crate) fn refusing() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}
