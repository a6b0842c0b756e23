use std::io;

use super::super::{ErrorKind, delivery::Proof};

/// What is known about a failure while the errors of its chain are read one by one.
pub(crate) struct Findings {
    /// The kind of the failure. An error deeper in the chain may change it.
    pub(super) kind: ErrorKind,
    /// Whether the client was still connecting when the request failed.
    pub(super) connecting: bool,
    pub(super) proof: Option<Proof>,
    /// The kind, if no error deeper in the chain can change it.
    pub(super) decided: Option<ErrorKind>,
    /// Whether the failure occurred on the way through a proxy. The errors below it are also read, for the proof.
    pub(super) is_of_proxy: bool,
    /// Whether every further attempt would fail for the same reason.
    pub(super) lasting: bool,
}

impl Findings {
    #[cfg(feature = "hyper")]
    pub(crate) fn connect(&mut self) {
        self.connecting = true;
        self.kind = ErrorKind::Connect;
    }

    /// Records the proof of an error, unless an outer error in the chain has already given a proof.
    pub(super) fn prove(&mut self, proof: Proof) {
        self.proof.get_or_insert(proof);
    }

    /// Records that every further attempt would fail for the same reason. An error below the one that decides the kind
    /// does not count. It may concern another connection, such as the one from which the request's body was read.
    pub(super) fn last(&mut self) {
        self.lasting |= self.decided.is_none();
    }

    /// Like [`last`](Self::last). Returns the final kind of the failure.
    pub(super) fn last_as(&mut self, kind: ErrorKind) -> Option<ErrorKind> {
        self.last();
        Some(kind)
    }

    pub(super) fn io(&self, kind: io::ErrorKind) -> Option<ErrorKind> {
        use io::ErrorKind::*;
        Some(match kind {
            ConnectionRefused => ErrorKind::ConnectRefused,
            // These I/O errors can also end an established connection. The kind is then already `Closed`, and does not
            // change.
            HostUnreachable | NetworkUnreachable | AddrNotAvailable if self.kind != ErrorKind::Closed => {
                ErrorKind::Connect
            }
            ConnectionReset | ConnectionAborted => ErrorKind::Reset,
            TimedOut if self.connecting => ErrorKind::ConnectTimeout,
            // No hyper error wraps this timeout, so it comes from a custom service.
            TimedOut if self.kind == ErrorKind::Other => ErrorKind::AttemptTimeout,
            // Only an established TCP connection can end this way, so it ended during the TLS handshake.
            UnexpectedEof if self.connecting => ErrorKind::Tls,
            // h2 reports a closed connection as a broken pipe.
            BrokenPipe | UnexpectedEof | NotConnected | TimedOut if !self.connecting => ErrorKind::Closed,
            _ => return None,
        })
    }
}
