//! A minimal HTTP/2 server (RFC 9113) that writes its frames by hand, so that the server can fail at any point.

use std::io;

use http::Method;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::server::{Behavior, Log, end_connection};

/// A step that the HTTP/2 server takes after reading a whole request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Step {
    /// Counts the request as processed, and sends nothing.
    Process,
    /// Sends the informational response 103.
    EarlyHints,
    /// Sends a response with status 200.
    Respond,
    /// Sends RST_STREAM with this error code.
    Reset(u32),
    /// Sends GOAWAY with `reason` as the error code. The last stream id in the frame is the request's stream id plus
    /// `id_offset`.
    GoAway { reason: u32, id_offset: i64 },
    /// Closes the connection.
    Close,
}

pub(crate) const PROCESS_AND_RESPOND: &[Step] = &[Step::Process, Step::Respond];

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

struct Connection {
    stream: TcpStream,
}

struct RawFrame {
    kind: u8,
    flags: u8,
    id: u32,
    payload: Vec<u8>,
}

pub(crate) async fn serve(mut stream: TcpStream, behavior: Behavior, log: &Log) -> io::Result<()> {
    // The client's connection preface has 24 bytes.
    stream.read_exact(&mut [0; 24]).await?;
    let mut connection = Connection { stream };
    connection.write_frame(SETTINGS, 0, 0, &[]).await?;
    for number in 0.. {
        let (id, method) = connection.read_request().await?;
        let steps: &[Step] = match behavior {
            Behavior::Steps(requests) => requests.get(number).unwrap_or(&PROCESS_AND_RESPOND),
            Behavior::CloseAfterRequest => &[Step::Process, Step::Close],
            Behavior::ResetInHeaders => {
                log.process(method);
                // The server announces a HEADERS frame of 100 bytes, and sends only the first byte.
                connection.stream.write_all(&[0, 0, 100, HEADERS, END_HEADERS, 0, 0, 0, 1, 0x88]).await?;
                return connection.stream.set_zero_linger();
            }
            Behavior::CloseInBody => {
                log.process(method);
                connection.write_frame(HEADERS, END_HEADERS, id, STATUS_200).await?;
                return connection.write_frame(DATA, 0, id, b"a part").await;
            }
            _ => PROCESS_AND_RESPOND,
        };
        for step in steps {
            match *step {
                Step::Process => log.process(method.clone()),
                Step::EarlyHints => connection.write_frame(HEADERS, END_HEADERS, id, STATUS_103).await?,
                Step::Respond => {
                    connection.write_frame(HEADERS, END_HEADERS | END_STREAM, id, STATUS_200).await?
                }
                Step::Reset(reason) => {
                    connection.write_frame(RST_STREAM, 0, id, &reason.to_be_bytes()).await?
                }
                Step::GoAway { reason, id_offset } => {
                    let last = (i64::from(id) + id_offset).clamp(0, HIGHEST_ID);
                    let mut payload = u32::try_from(last).unwrap().to_be_bytes().to_vec();
                    payload.extend(reason.to_be_bytes());
                    connection.write_frame(GOAWAY, 0, 0, &payload).await?;
                }
                Step::Close => {
                    return end_connection(connection.stream, Behavior::RespondThenClose).await;
                }
            }
        }
        if behavior.responds_once() {
            return end_connection(connection.stream, behavior).await;
        }
    }
    Ok(())
}

impl Connection {
    /// Reads a whole request, and acknowledges SETTINGS and PING frames. After the first request, also waits for the
    /// client's SETTINGS acknowledgement, so that it cannot arrive after the server has closed the connection.
    async fn read_request(&mut self) -> io::Result<(u32, Method)> {
        let (mut method, mut acknowledged) = (None, false);
        loop {
            let frame = self.read_frame().await?;
            let ended = matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0;
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => self.write_frame(SETTINGS, ACK, 0, &[]).await?,
                SETTINGS => acknowledged = true,
                PING if frame.flags & ACK == 0 => self.write_frame(PING, ACK, 0, &frame.payload).await?,
                // hyper's client sends the method as the first header. HPACK's static table has entries for GET and
                // POST.
                HEADERS => {
                    method = Some(match frame.payload[0] {
                        0x82 => Method::GET,
                        0x83 => Method::POST,
                        _ => Method::HEAD,
                    });
                }
                _ => {}
            }
            if ended {
                if !acknowledged && frame.id == 1 {
                    while self.read_frame().await?.kind != SETTINGS {}
                }
                return Ok((frame.id, method.unwrap()));
            }
        }
    }

    async fn read_frame(&mut self) -> io::Result<RawFrame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).await?;
        Ok(RawFrame { kind, flags, id: u32::from_be_bytes(id) & 0x7fff_ffff, payload })
    }

    async fn write_frame(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) -> io::Result<()> {
        let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(id.to_be_bytes());
        frame.extend(payload);
        self.stream.write_all(&frame).await
    }
}
