use std::io;

use super::super::{ErrorKind, delivery::Proof};

/// The result of reading the chain of errors so far.
pub(super) struct Findings {
    /// The kind, unless a deeper error is known.
    pub(super) kind: ErrorKind,
    /// Whether the connection was still being made.
    pub(super) connecting: bool,
    pub(super) proof: Option<Proof>,
}

impl Findings {
    #[cfg(feature = "hyper")]
    pub(super) fn connect(&mut self) {
        self.connecting = true;
        self.kind = ErrorKind::Connect;
    }

    /// Adds what an error proves, unless an error above it has proved something.
    pub(super) fn prove(&mut self, proof: Proof) {
        self.proof.get_or_insert(proof);
    }

    pub(super) fn io(&self, kind: io::ErrorKind) -> Option<ErrorKind> {
        use io::ErrorKind::*;
        Some(match kind {
            ConnectionRefused => ErrorKind::ConnectRefused,
            // These kinds of I/O errors also end an established connection, whose error is `Closed` until then.
            HostUnreachable | NetworkUnreachable | AddrNotAvailable if self.kind != ErrorKind::Closed => {
                ErrorKind::Connect
            }
            ConnectionReset | ConnectionAborted => ErrorKind::Reset,
            TimedOut if self.connecting => ErrorKind::ConnectTimeout,
            // A timeout without hyper's error above it is that of a custom service.
            TimedOut if self.kind == ErrorKind::Other => ErrorKind::AttemptTimeout,
            // TCP is established by then, so the connection ended during the handshake.
            UnexpectedEof if self.connecting => ErrorKind::Tls,
            // h2 reports the end of a connection as a broken pipe.
            BrokenPipe | UnexpectedEof | NotConnected | TimedOut if !self.connecting => ErrorKind::Closed,
            _ => return None,
        })
    }
}
