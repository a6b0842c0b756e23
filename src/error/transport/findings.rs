use std::io;

use super::super::{ErrorKind, delivery::Proof};

/// What the errors of a chain have shown so far.
pub(super) struct Findings {
    /// The kind of the failure. A deeper error may replace it.
    pub(super) kind: ErrorKind,
    /// Whether the client was still connecting when the request failed.
    pub(super) connecting: bool,
    pub(super) proof: Option<Proof>,
}

impl Findings {
    #[cfg(feature = "hyper")]
    pub(super) fn connect(&mut self) {
        self.connecting = true;
        self.kind = ErrorKind::Connect;
    }

    /// Records the proof of an error, unless an outer error in the chain has already given a proof.
    pub(super) fn prove(&mut self, proof: Proof) {
        self.proof.get_or_insert(proof);
    }

    pub(super) fn io(&self, kind: io::ErrorKind) -> Option<ErrorKind> {
        use io::ErrorKind::*;
        Some(match kind {
            ConnectionRefused => ErrorKind::ConnectRefused,
            // An established connection can also end with these I/O errors. In that case the kind is already `Closed`.
            HostUnreachable | NetworkUnreachable | AddrNotAvailable if self.kind != ErrorKind::Closed => {
                ErrorKind::Connect
            }
            ConnectionReset | ConnectionAborted => ErrorKind::Reset,
            TimedOut if self.connecting => ErrorKind::ConnectTimeout,
            // If no error of hyper wraps the timeout, it comes from a custom service.
            TimedOut if self.kind == ErrorKind::Other => ErrorKind::AttemptTimeout,
            // The TCP connection was already established, so it ended during the TLS handshake.
            UnexpectedEof if self.connecting => ErrorKind::Tls,
            // h2 reports a closed connection as a broken pipe.
            BrokenPipe | UnexpectedEof | NotConnected | TimedOut if !self.connecting => ErrorKind::Closed,
            _ => return None,
        })
    }
}
