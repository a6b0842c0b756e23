//! A server that writes raw bytes. Each connection has its own thread, so that a test counts only the client's memory.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
};

/// Starts a server that calls `connection` with each accepted connection, in a new thread. Returns the server's base
/// URL.
pub(crate) fn serve(connection: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let connection = Arc::new(connection);
    // The thread of a connection ends with that connection. The thread that accepts connections ends with the process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, connection) = (stream.unwrap(), Arc::clone(&connection));
            stream.set_nodelay(true).unwrap();
            // The result is ignored, because the tests assert only what the client observes.
            thread::spawn(move || connection(stream).is_ok());
        }
    });
    url
}

/// Calls `respond` after the headers of each HTTP/1.1 request. Requests have no body.
pub(crate) fn serve_http1(
    respond: impl Fn(&mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
) -> String {
    serve(move |mut stream| {
        loop {
            read_head(&mut stream)?;
            respond(&mut stream)?;
        }
    })
}

fn read_head(stream: &mut TcpStream) -> io::Result<()> {
    let (mut last, mut byte) = ([0; 4], [0]);
    while last != *b"\r\n\r\n" {
        stream.read_exact(&mut byte)?;
        last.rotate_left(1);
        last[3] = byte[0];
    }
    Ok(())
}

/// Repeats `piece` until the client closes the connection.
pub(crate) fn write_forever(stream: &mut TcpStream, piece: &[u8]) -> io::Result<()> {
    // Large writes make the server faster than the client.
    let batch = piece.repeat((64 * 1024 / piece.len()).max(1));
    loop {
        stream.write_all(&batch)?;
    }
}

/// Discards input and writes nothing until the client closes the connection.
pub(crate) fn read_until_closed(stream: &mut TcpStream) -> io::Result<()> {
    io::copy(stream, &mut io::sink()).map(|_| ())
}

pub(crate) mod http2 {
    //! The parts of HTTP/2 (RFC 9113) that the tests need to send invalid or excessive frames.

    use super::*;

    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;

    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;

    /// The field `:status: 200`, encoded as an index into HPACK's static table.
    pub(crate) const STATUS_200: &[u8] = &[0x88];
    pub(crate) const STATUS_404: &[u8] = &[0x8d];
    /// The field `:status: 103`, encoded with an indexed name and a literal value.
    pub(crate) const STATUS_103: &[u8] = &[0x08, 3, b'1', b'0', b'3'];
    pub(crate) const STATUS_503: &[u8] = &[0x08, 3, b'5', b'0', b'3'];

    pub(crate) fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(id.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// Encodes a literal field without indexing. Name and value must be shorter than 16 KiB.
    pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
        [&[0][..], &string(name), &string(value)].concat()
    }

    /// Encodes an HPACK string literal without Huffman coding.
    pub(crate) fn string(text: &str) -> Vec<u8> {
        let mut length = text.len();
        let mut string = vec![];
        match length {
            0..127 => string.push(length as u8),
            _ => {
                string.push(127);
                length -= 127;
                while length >= 128 {
                    string.push((length % 128) as u8 | 128);
                    length /= 128;
                }
                string.push(length as u8);
            }
        }
        string.extend(text.bytes());
        string
    }

    /// Calls `respond` with the stream id of each request. The server reads the client's other frames between
    /// responses.
    pub(crate) fn serve_http2(
        respond: impl Fn(&mut TcpStream, u32) -> io::Result<()> + Send + Sync + 'static,
    ) -> String {
        serve(move |mut stream| {
            stream.read_exact(&mut [0; 24])?; // the client's preface
            stream.write_all(&frame(SETTINGS, 0, 0, &[]))?;
            loop {
                let (kind, flags, id) = read_frame(&mut stream)?;
                match kind {
                    SETTINGS if flags & ACK == 0 => stream.write_all(&frame(SETTINGS, ACK, 0, &[]))?,
                    HEADERS => respond(&mut stream, id)?,
                    _ => {}
                }
            }
        })
    }

    fn read_frame(stream: &mut TcpStream) -> io::Result<(u8, u8, u32)> {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload)?;
        Ok((kind, flags, u32::from_be_bytes(id)))
    }

    /// Discards all further input in a new thread, while the current thread writes.
    pub(crate) fn discard_input(stream: &TcpStream) -> io::Result<()> {
        let mut reader = stream.try_clone()?;
        thread::spawn(move || read_until_closed(&mut reader).is_ok());
        Ok(())
    }
}
