use tokio::io::{AsyncRead, AsyncWrite};

/// A connection to a server or a proxy: TCP, the stream of a custom connector, or TLS over one of these.
pub(super) type Stream = Box<dyn Duplex>;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}
