//! HTTP/2 by hand (RFC 9113): as much of it as a server needs that means to fail.

use std::io;

use http::Method;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::server::{Act, Log, end};

/// What a server says once a request is there whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Frame {
    /// Says nothing, and counts the request as processed.
    Process,
    /// An informational response, 103, which announces that a response follows.
    EarlyHints,
    /// The answer, 200.
    Scripted,
    /// RST_STREAM with this reason.
    Reset(u32),
    /// GOAWAY with this reason, and as the last id that of the request and so much to it.
    GoAway { reason: u32, beyond: i64 },
    /// Nothing more: the connection is closed.
    Close,
}

pub(crate) const ANSWER: &[Frame] = &[Frame::Process, Frame::Scripted];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// `:status: 200`, which HPACK's static table has.
const STATUS_200: &[u8] = &[0x88];

/// `:status: 103`. The static table has the name at index 8.
const STATUS_103: &[u8] = &[0x08, 3, b'1', b'0', b'3'];

/// Ids have 31 bits.
pub(crate) const HIGHEST_ID: i64 = 0x7fff_ffff;

struct Connection {
    stream: TcpStream,
}

struct Read {
    kind: u8,
    flags: u8,
    id: u32,
    payload: Vec<u8>,
}

pub(crate) async fn serve(mut stream: TcpStream, act: Act, log: &Log) -> io::Result<()> {
    if act == Act::Leave {
        return Ok(());
    }
    stream.read_exact(&mut [0; 24]).await?; // the client's preface
    let mut connection = Connection { stream };
    connection.write(SETTINGS, 0, 0, &[]).await?;
    for number in 0.. {
        let (id, method) = connection.request().await?;
        let frames: &[Frame] = match act {
            Act::Say(all) => all.get(number).unwrap_or(&ANSWER),
            Act::Process => &[Frame::Process, Frame::Close],
            Act::ResetInHead => {
                log.process(method);
                // The head of a frame that says that there is more of it.
                connection.stream.write_all(&[0, 0, 100, HEADERS, END_HEADERS, 0, 0, 0, 1, 0x88]).await?;
                return connection.stream.set_zero_linger();
            }
            Act::CloseInBody => {
                log.process(method);
                connection.write(HEADERS, END_HEADERS, id, STATUS_200).await?;
                return connection.write(DATA, 0, id, b"a part").await;
            }
            _ => ANSWER,
        };
        for frame in frames {
            match *frame {
                Frame::Process => log.process(method.clone()),
                Frame::EarlyHints => connection.write(HEADERS, END_HEADERS, id, STATUS_103).await?,
                Frame::Scripted => {
                    connection.write(HEADERS, END_HEADERS | END_STREAM, id, STATUS_200).await?
                }
                Frame::Reset(reason) => connection.write(RST_STREAM, 0, id, &reason.to_be_bytes()).await?,
                Frame::GoAway { reason, beyond } => {
                    let last = (i64::from(id) + beyond).clamp(0, HIGHEST_ID);
                    let mut payload = u32::try_from(last).unwrap().to_be_bytes().to_vec();
                    payload.extend(reason.to_be_bytes());
                    connection.write(GOAWAY, 0, 0, &payload).await?;
                }
                Frame::Close => return end(connection.stream, Act::AnswerAndClose, log).await,
            }
        }
        if matches!(act, Act::AnswerAndClose | Act::AnswerAndLeave | Act::AnswerAndIgnore) {
            return end(connection.stream, act, log).await;
        }
    }
    Ok(())
}

impl Connection {
    /// Reads up to the end of a request, and answers what the connection itself asks meanwhile. The first request
    /// is there when the client has agreed to the settings: from then on it sends nothing by itself.
    async fn request(&mut self) -> io::Result<(u32, Method)> {
        let (mut method, mut agreed) = (None, false);
        loop {
            let frame = self.read().await?;
            let ended = matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0;
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => self.write(SETTINGS, ACK, 0, &[]).await?,
                SETTINGS => agreed = true,
                PING if frame.flags & ACK == 0 => self.write(PING, ACK, 0, &frame.payload).await?,
                // The first field is the method, and of those that are sent here the static table has two.
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
                if !agreed && frame.id == 1 {
                    while self.read().await?.kind != SETTINGS {}
                }
                return Ok((frame.id, method.unwrap()));
            }
        }
    }

    async fn read(&mut self) -> io::Result<Read> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).await?;
        Ok(Read { kind, flags, id: u32::from_be_bytes(id) & 0x7fff_ffff, payload })
    }

    async fn write(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) -> io::Result<()> {
        let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(id.to_be_bytes());
        frame.extend(payload);
        self.stream.write_all(&frame).await
    }
}
