//! A server whose connections follow a script of bytes and of HTTP/2 frames (RFC 9113), so that it can fail at any
//! point. The server counts the requests that it processes.

use std::{
    io,
    sync::{Arc, Mutex},
};

use http::Method;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Notify,
    task::JoinSet,
};

use super::{stack::Wire, within};

/// A step that the server takes after reading a whole request. The steps that name a frame need HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Step {
    /// Counts the request as processed, and sends nothing.
    Process,
    /// Sends the informational response 103.
    EarlyHints,
    /// Sends a response with status 200.
    Respond,
    /// Sends a part of the response headers.
    PartOfHeaders,
    /// Sends the response headers and a part of the body.
    PartOfBody,
    /// Sends RST_STREAM with this error code.
    Reset(u32),
    /// Sends GOAWAY with `reason` as the error code. The last stream id in the frame is the request's stream id plus
    /// `id_offset`.
    GoAway { reason: u32, id_offset: i64 },
    /// Closes the connection, and waits until the client has also closed it.
    Close,
    /// Resets the connection.
    ResetConnection,
    /// Waits for the next request, and closes the connection without reading it, which resets the connection.
    IgnoreNext,
}
use Step::*;

/// The steps after each request of a connection. After the last list, the server processes and responds.
pub(crate) type Script = &'static [&'static [Step]];

pub(crate) const PROCESS_AND_RESPOND: &[Step] = &[Process, Respond];
pub(crate) const CLOSE_AFTER_REQUEST: Script = &[&[Process, Close]];
pub(crate) const RESET_IN_HEADERS: Script = &[&[Process, PartOfHeaders, ResetConnection]];
pub(crate) const CLOSE_IN_BODY: Script = &[&[Process, PartOfBody, Close]];

/// A test server that stops when it is dropped.
pub(crate) struct Server {
    url: String,
    log: Arc<Log>,
    _accepting: JoinSet<()>,
}

#[derive(Default)]
struct Log {
    processed: Mutex<Vec<Method>>,
    connections: Mutex<usize>,
    ended: Notify,
}

impl Server {
    /// Starts a server with one script for each connection. Further connections respond to every request.
    pub(crate) async fn start(wire: Wire, scripts: &[Script]) -> Self {
        Self::over(TcpListener::bind("127.0.0.1:0").await.unwrap(), wire, scripts)
    }

    pub(crate) fn over(listener: TcpListener, wire: Wire, scripts: &[Script]) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (log, scripts) = (Arc::<Log>::default(), scripts.to_vec());
        let server_log = Arc::clone(&log);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = {
                    let mut connections = server_log.connections.lock().unwrap();
                    *connections += 1;
                    *connections
                };
                let script = scripts.get(number - 1).copied().unwrap_or_default();
                let log = Arc::clone(&server_log);
                tokio::spawn(async move {
                    stream.set_nodelay(true).unwrap();
                    // The result is ignored, because the tests check how the client sees the end of a connection.
                    let _ = serve(Connection { stream, wire }, script, &log).await;
                    log.ended.notify_one();
                });
            }
        });
        Self { url, log, _accepting: accepting }
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
        within(self.log.ended.notified()).await;
    }
}

async fn serve(mut connection: Connection, script: Script, log: &Log) -> io::Result<()> {
    if connection.wire == Wire::Http2 {
        // The client's connection preface has 24 bytes.
        connection.stream.read_exact(&mut [0; 24]).await?;
        connection.stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    }
    for number in 0.. {
        let (id, method) = connection.read_request().await?;
        for step in *script.get(number).unwrap_or(&PROCESS_AND_RESPOND) {
            let stream = &mut connection.stream;
            match step {
                Process => log.processed.lock().unwrap().push(method.clone()),
                Close => {
                    stream.shutdown().await?;
                    while stream.read(&mut [0; 1024]).await? > 0 {}
                    return Ok(());
                }
                ResetConnection => return stream.set_zero_linger(),
                // Closing a socket with unread bytes resets the connection.
                IgnoreNext => return stream.peek(&mut [0]).await.map(drop),
                _ if connection.wire == Wire::Http1 => stream.write_all(http1_bytes(*step)).await?,
                _ => stream.write_all(&http2_bytes(*step, id)).await?,
            }
        }
    }
    Ok(())
}

fn http1_bytes(step: Step) -> &'static [u8] {
    match step {
        Respond => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        PartOfHeaders => b"HTTP/1.1 200 OK\r\ncontent-le",
        PartOfBody => b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\na part",
        _ => unreachable!("{step:?} needs HTTP/2"),
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The header `:status: 200`, encoded as an entry of HPACK's static table.
const STATUS_200: &[u8] = &[0x88];

/// The header `:status: 103`. Index 8 of HPACK's static table is the name `:status`.
const STATUS_103: &[u8] = &[0x08, 3, b'1', b'0', b'3'];

/// The highest HTTP/2 stream id, which has 31 bits.
pub(crate) const HIGHEST_ID: i64 = 0x7fff_ffff;

fn http2_bytes(step: Step, id: u32) -> Vec<u8> {
    match step {
        EarlyHints => frame(HEADERS, END_HEADERS, id, STATUS_103),
        Respond => frame(HEADERS, END_HEADERS | END_STREAM, id, STATUS_200),
        // The server announces a HEADERS frame of 100 bytes, and sends only the first byte.
        PartOfHeaders => vec![0, 0, 100, HEADERS, END_HEADERS, 0, 0, 0, 1, 0x88],
        PartOfBody => [frame(HEADERS, END_HEADERS, id, STATUS_200), frame(DATA, 0, id, b"a part")].concat(),
        Reset(reason) => frame(RST_STREAM, 0, id, &reason.to_be_bytes()),
        GoAway { reason, id_offset } => {
            let last = (i64::from(id) + id_offset).clamp(0, HIGHEST_ID);
            let last = u32::try_from(last).unwrap().to_be_bytes();
            frame(GOAWAY, 0, 0, &[last, reason.to_be_bytes()].concat())
        }
        _ => unreachable!("{step:?} sends nothing"),
    }
}

fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &id.to_be_bytes(), payload].concat()
}

struct Connection {
    stream: TcpStream,
    wire: Wire,
}

impl Connection {
    /// Reads a whole request. Returns its stream id, which is 0 in HTTP/1, and its method.
    async fn read_request(&mut self) -> io::Result<(u32, Method)> {
        match self.wire {
            Wire::Http1 => Ok((0, self.read_http1_request().await?)),
            Wire::Http2 => self.read_http2_request().await,
        }
    }

    async fn read_http1_request(&mut self) -> io::Result<Method> {
        let mut read = Vec::new();
        loop {
            if self.stream.read_buf(&mut read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let text = String::from_utf8_lossy(&read);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
                if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                    return Ok(head.split(' ').next().unwrap().parse().unwrap());
                }
            }
        }
    }

    /// Acknowledges SETTINGS and PING frames. After the first request, also waits for the client's SETTINGS
    /// acknowledgement, so that it cannot arrive after the server has closed the connection.
    async fn read_http2_request(&mut self) -> io::Result<(u32, Method)> {
        let (mut method, mut acknowledged) = (None, false);
        loop {
            let (kind, flags, id, payload) = self.read_frame().await?;
            match kind {
                SETTINGS if flags & ACK == 0 => self.stream.write_all(&frame(SETTINGS, ACK, 0, &[])).await?,
                SETTINGS => acknowledged = true,
                PING if flags & ACK == 0 => self.stream.write_all(&frame(PING, ACK, 0, &payload)).await?,
                // hyper's client sends the method as the first header. HPACK's static table has entries for GET and
                // POST.
                HEADERS => {
                    method = Some(match payload[0] {
                        0x82 => Method::GET,
                        0x83 => Method::POST,
                        _ => Method::HEAD,
                    });
                }
                _ => {}
            }
            if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                while !acknowledged && id == 1 {
                    acknowledged = self.read_frame().await?.0 == SETTINGS;
                }
                return Ok((id, method.unwrap()));
            }
        }
    }

    /// Returns the kind, the flags, the stream id and the payload of the next frame.
    async fn read_frame(&mut self) -> io::Result<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).await?;
        Ok((kind, flags, u32::from_be_bytes(id) & 0x7fff_ffff, payload))
    }
}

/// Returns a bound socket that does not listen. Its port refuses connections, and no other process can bind that port.
pub(crate) fn refusing() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}
