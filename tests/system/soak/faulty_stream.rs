//! Faulty connections of a server: TCP streams with injected faults, and TLS over these streams.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
    server::TlsStream,
};
use tower_outbound::transport::TransportConfig;

use super::rng::Rng;

/// A TCP stream that fails after `reset` is set. If `reset` is set when this value is dropped, the connection is reset.
pub(crate) struct ResettableStream {
    pub(crate) stream: TcpStream,
    pub(crate) reset: Arc<AtomicBool>,
}

impl ResettableStream {
    fn check(&self) -> io::Result<()> {
        if self.reset.load(Relaxed) { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

impl Drop for ResettableStream {
    fn drop(&mut self) {
        if self.reset.load(Relaxed) {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for ResettableStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for ResettableStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A stream that writes garbage instead of its data after `corrupt` is set.
pub(crate) struct CorruptibleStream<S> {
    pub(crate) stream: S,
    pub(crate) corrupt: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for CorruptibleStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CorruptibleStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let garbage = [0xfe; 64];
        let buf = if self.corrupt.load(Relaxed) { &garbage[..buf.len().min(64)] } else { buf };
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Three TLS acceptors. The first offers HTTP/2 and HTTP/1.1 by ALPN, the second offers only HTTP/1.1 by ALPN, and
/// the third does not use ALPN.
#[derive(Clone)]
pub(crate) struct Acceptors([TlsAcceptor; 3]);

/// The PEM certificate that the clients trust.
pub(crate) struct Trust(String);

impl Acceptors {
    pub(crate) fn new() -> (Self, Trust) {
        let certificate = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let acceptors = [&["h2", "http/1.1"][..], &["http/1.1"], &[]].map(|protocols| {
            let key = PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der());
            let provider = Arc::new(ring::default_provider());
            let builder = ServerConfig::builder_with_provider(provider);
            let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
            let chain = vec![certificate.cert.der().clone()];
            let mut config = builder.with_single_cert(chain, PrivateKeyDer::from(key)).unwrap();
            config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
            TlsAcceptor::from(Arc::new(config))
        });
        (Self(acceptors), Trust(certificate.cert.pem()))
    }

    pub(crate) async fn accept(
        &self,
        stream: ResettableStream,
        rng: &mut Rng,
    ) -> io::Result<(TlsStream<ResettableStream>, &'static str)> {
        let index = rng.choose_weighted(&[(45, 0), (45, 1), (10, 2)]);
        let stream = self.0[index].accept(stream).await?;
        Ok((stream, ["HTTP/2", "HTTP/1.1", "HTTP/1.1 without ALPN"][index]))
    }
}

impl Trust {
    pub(crate) fn transport(&self) -> TransportConfig {
        TransportConfig::new().without_bundled_roots().with_root_certificates(self.0.as_bytes())
    }
}
