//! Reads from the error of an attempt whether the server can have processed the request.
//!
//! The first transport error or [`DeliveryError`] in the chain of sources decides. Errors below it may be about another
//! connection, for example the one that the request's body was read from. Without either, the request counts as
//! [`Delivery::MaybeProcessed`]. Callers skip this check if the request's body failed, because an unknown client may
//! return the body's error as its own.
//!
//! | error | delivery |
//! |---|---|
//! | hyper-util's client: no connection was made, for whatever reason | not sent |
//! | hyper-util's `HttpConnector`, also inside the error of another client | not sent |
//! | hyper: canceled before the request was written, or the connection was closed before | not sent |
//! | h2: the server reset the stream with `REFUSED_STREAM` (RFC 9113 §8.7) | not sent |
//! | the service's own `DeliveryError::not_sent`, `ConnectionRefused`, or tower's `Overloaded` | not sent |
//! | `HostUnreachable`, `NetworkUnreachable` or `AddrNotAvailable` without one of the connect errors above | maybe processed |
//! | GOAWAY, a reset connection, a body that failed, and any other error | maybe processed |

use std::{error::Error as StdError, io};

use hyper_util::client::legacy;
use tower::load_shed::error::Overloaded;

use crate::{
    error::{ConnectError, DeliveryError, Error, chain, is_rejected},
    policy::Delivery,
};

/// The result of reading an attempt's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Proof {
    pub(super) delivery: Delivery,
    /// Whether the next attempt would fail in the same way, until a certificate, a setting or the request changes.
    pub(super) lasting: bool,
}

const NOT_SENT: Proof = Proof { delivery: Delivery::NotSent, lasting: false };
const MAYBE: Proof = Proof { delivery: Delivery::MaybeProcessed, lasting: false };

/// Returns what the error of the inner service proves.
pub(super) fn proof(error: &Error) -> Proof {
    let first = error.original();
    if first.is_some_and(states_not_sent) {
        return NOT_SENT;
    }
    for error in first.into_iter().flat_map(chain) {
        // Of a retry layer below, which made several attempts.
        if error.downcast_ref().is_some_and(Error::is_after_processing) {
            return MAYBE;
        }
        if let Some(error) = error.downcast_ref::<DeliveryError>() {
            return Proof { lasting: error.is_lasting(), ..MAYBE };
        }
        if let Some(error) = error.downcast_ref() {
            return by_client(error);
        }
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            return by_connection(error, was_not_begun(error));
        }
        if let Some(error) = error.downcast_ref() {
            return by_stream(error);
        }
        if error.is::<ConnectError>() {
            return NOT_SENT;
        }
    }
    MAYBE
}

/// Returns whether the service itself states that nothing was sent. Inside another error each of these may be about
/// another connection or request, for example the one that the request's body was read from.
fn states_not_sent(error: &(dyn StdError + 'static)) -> bool {
    // Established TCP connections never fail with this kind. The other kinds of failed connects occur on them, too.
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    // A service may wrap its statement in it.
    let marked = || chain(error).any(|error| error.is::<DeliveryError>());
    error.downcast_ref().is_some_and(refused) && !marked()
        || error.downcast_ref().is_some_and(DeliveryError::is_not_sent)
        // tower's `LoadShed` returns it instead of calling its service.
        || error.is::<Overloaded>()
}

/// Reads the error of hyper-util's client, which names the connection that the error occurred on. Without one, the
/// client never had a connection for the request, because connecting, TLS or the HTTP/2 handshake failed.
fn by_client(error: &legacy::Error) -> Proof {
    // If the text of hyper-util changes, the checks below decide.
    if is_rejected(error) {
        return Proof { lasting: true, ..NOT_SENT };
    }
    if error.is_connect() || error.connect_info().is_none() {
        return Proof { lasting: is_permanent(error), ..NOT_SENT };
    }
    match error.source().and_then(|error| error.downcast_ref::<hyper::Error>()) {
        // hyper also reports an upgrade as canceled, but this client waits for none.
        Some(error) => by_connection(error, error.is_canceled()),
        None => MAYBE,
    }
}

fn by_connection(error: &hyper::Error, unbegun: bool) -> Proof {
    match error.source().and_then(|error| error.downcast_ref()) {
        _ if unbegun => NOT_SENT,
        // The body failed with its own error, which is about something else, or hyper's task ended without a result.
        _ if error.is_user() => MAYBE,
        Some(error) => by_stream(error),
        // Closed or reset, perhaps after the server read the request. HTTP/1.1 does not show the difference.
        None => MAYBE,
    }
}

/// Reads an HTTP/2 error. A server that resets a stream with REFUSED_STREAM states that it did not process the request
/// (RFC 9113 §8.7). A REFUSED_STREAM of h2 itself states nothing.
///
/// GOAWAY proves nothing. The server did not process streams above the last id, and h2 returns its error for those.
/// However, h2 does not expose the id. hyper returns the same error for a request below it, if another thread read the
/// GOAWAY while the request was queued. h2's task may still send that request before it resets the stream.
fn by_stream(error: &h2::Error) -> Proof {
    let refused = error.is_remote() && error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    if refused { NOT_SENT } else { MAYBE }
}

/// Returns whether hyper, without hyper-util's client, returned the request unwritten or found its connection closed.
/// hyper checks for a closed connection only in `poll_ready`.
///
/// hyper also cancels an upgrade, after the response. The error for that has no public type, so the texts of the other
/// causes decide. If they change, the result is "maybe processed".
fn was_not_begun(error: &hyper::Error) -> bool {
    if error.is_closed() {
        return true;
    }
    let why = error.source().filter(|_| error.is_canceled());
    why.is_some_and(|why| {
        why.is::<hyper::Error>()
            || ["connection closed", "connection was not ready"].contains(&why.to_string().as_str())
    })
}

/// Returns whether TLS fails in the same way on the next attempt: by a wrong certificate, or without a common version
/// or cipher. The caller should learn at once that it may be talking to another server.
#[cfg(feature = "rustls")]
fn is_permanent(error: &legacy::Error) -> bool {
    use rustls::Error::{InvalidCertificate, NoCertificatesPresented, PeerIncompatible};

    let tls = chain(error).find_map(|error| error.downcast_ref());
    matches!(tls, Some(InvalidCertificate(_) | NoCertificatesPresented | PeerIncompatible(_)))
}

#[cfg(not(feature = "rustls"))]
fn is_permanent(_: &legacy::Error) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use bytes::Bytes;
    use futures_util::{StreamExt, stream};
    use http::{Method, Request, Uri, Version};
    use http_body::Frame;
    use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
    use hyper::client::conn::http1;
    use hyper_util::{
        client::legacy::connect::HttpConnector,
        rt::{TokioExecutor, TokioIo},
    };
    use io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable,
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        net::{TcpListener, TcpStream},
    };

    use tower::ServiceExt;

    use super::*;
    use crate::error::BoxError;

    type Body = UnsyncBoxBody<Bytes, BoxError>;

    /// The error of an unknown client or body.
    #[derive(Debug)]
    struct Unknown(BoxError);

    impl fmt::Display for Unknown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("unknown")
        }
    }

    impl StdError for Unknown {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&*self.0)
        }
    }

    fn request(body: impl stream::Stream<Item = BoxError> + Send + 'static) -> Request<Body> {
        let frames = body.map(Err::<Frame<Bytes>, _>);
        let mut request = Request::new(StreamBody::new(frames).boxed_unsync());
        // hyper sends a GET without its body if it does not know the length.
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static("http://localhost/");
        request
    }

    /// Returns the error of hyper-util's client after its connector failed with `error`.
    async fn connect(error: impl Into<BoxError>) -> legacy::Error {
        let error = std::sync::Arc::new(std::sync::Mutex::new(Some(error.into())));
        let connector = tower::service_fn(move |_: Uri| {
            let error = error.lock().unwrap().take().unwrap();
            std::future::ready(Err::<TokioIo<TcpStream>, BoxError>(error))
        });
        legacy::Client::builder(TokioExecutor::new())
            .build(connector)
            .request(request(stream::empty()))
            .await
            .unwrap_err()
    }

    /// Returns the error of hyper-util's client after the request's body failed with `error` on an established connection.
    async fn body(error: impl Into<BoxError>) -> legacy::Error {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut request = request(stream::iter([error.into()]));
        *request.uri_mut() = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        legacy::Client::builder(TokioExecutor::new()).build_http().request(request).await.unwrap_err()
    }

    /// Returns the error of hyper-util's connector for a port without a listener.
    async fn not_connected() -> ConnectError {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri: Uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        drop(listener);
        HttpConnector::new().oneshot(uri).await.unwrap_err()
    }

    /// Returns the error of hyper-util's connector for a local address that this machine does not have (RFC 5737).
    async fn no_local_address() -> ConnectError {
        let mut connector = HttpConnector::new();
        connector.set_local_address(Some([192, 0, 2, 1].into()));
        let error = connector.oneshot(Uri::from_static("http://127.0.0.1:1/")).await.unwrap_err();
        let kind = error.source().and_then(|error| error.downcast_ref()).map(io::Error::kind);
        assert_eq!(kind, Some(AddrNotAvailable), "{error:?}");
        error
    }

    async fn connection()
    -> (http1::SendRequest<Body>, http1::Connection<TokioIo<DuplexStream>, Body>, DuplexStream) {
        let (ours, theirs) = duplex(1024);
        let (sender, connection) = http1::handshake(TokioIo::new(ours)).await.unwrap();
        (sender, connection, theirs)
    }

    /// Returns hyper's error, without hyper-util, for a queued request whose connection ends or sends `by` first.
    async fn cancelled(by: &[u8]) -> hyper::Error {
        let (mut sender, connection, mut theirs) = connection().await;
        let sent = sender.send_request(request(stream::empty()));
        theirs.write_all(by).await.unwrap();
        drop(theirs);
        tokio::join!(sent, connection).0.unwrap_err()
    }

    /// Returns hyper's error, without hyper-util, for a connection that ended before there was a request.
    async fn closed() -> hyper::Error {
        let (mut sender, connection, _) = connection().await;
        drop(connection);
        sender.ready().await.unwrap_err()
    }

    /// Returns hyper's error, without hyper-util, for a connection that ends after the request was read.
    async fn unanswered() -> hyper::Error {
        let (mut sender, connection, mut theirs) = connection().await;
        let sent = sender.send_request(request(stream::empty()));
        let read = async {
            let mut head = [0; 16];
            theirs.read_exact(&mut head).await.unwrap();
            drop(theirs);
        };
        tokio::join!(sent, connection, read).0.unwrap_err()
    }

    /// Returns h2's error after the server refused a stream.
    async fn refused_stream() -> h2::Error {
        let (ours, theirs) = duplex(1024);
        let server = async {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            respond.send_reset(h2::Reason::REFUSED_STREAM);
            while connection.accept().await.is_some() {}
        };
        let client = async {
            let (mut sender, connection) = h2::client::handshake(ours).await.unwrap();
            let (answer, _) =
                sender.send_request(Request::get("http://localhost/").body(()).unwrap(), true).unwrap();
            tokio::select! {
                answer = answer => answer.unwrap_err(),
                _ = connection => panic!("the connection ended first"),
            }
        };
        tokio::select! {
            error = client => error,
            () = server => panic!("the server ended first"),
        }
    }

    const NEVER_SENT: Proof = Proof { lasting: true, ..NOT_SENT };
    #[cfg(feature = "reqwest")]
    const MAYBE_EACH_TIME: Proof = Proof { lasting: true, ..MAYBE };

    #[tokio::test]
    async fn the_first_transport_error_or_marker_in_the_chain_decides() {
        let refused = || io::Error::from(ConnectionRefused);
        let retried = async || Error::from_service(connect(refused()).await);
        let not_sent = || DeliveryError::not_sent("no free connection");
        let maybe = || DeliveryError::maybe_processed(refused());
        let mut of_version_3 = request(stream::empty());
        *of_version_3.version_mut() = Version::HTTP_3;
        let unsupported = legacy::Client::builder(TokioExecutor::new()).build_http().request(of_version_3);
        let mut table: Vec<(&str, BoxError, Proof)> = vec![
            ("refused", refused().into(), NOT_SENT),
            ("reset", io::Error::from(ConnectionReset).into(), MAYBE),
            ("refused, in an unknown error", Unknown(refused().into()).into(), MAYBE),
            ("refused, in an I/O error", io::Error::other(refused()).into(), MAYBE),
            ("connect error", connect(refused()).await.into(), NOT_SENT),
            ("connect error without a known source", connect("no reason").await.into(), NOT_SENT),
            ("connect error, in an unknown error", Unknown(connect(refused()).await.into()).into(), NOT_SENT),
            ("connect error, in an I/O error", io::Error::other(connect(refused()).await).into(), NOT_SENT),
            ("unsupported version", unsupported.await.unwrap_err().into(), NEVER_SENT),
            ("connector's error", not_connected().await.into(), NOT_SENT),
            (
                "connector's error, in another client's",
                Unknown(Unknown(not_connected().await.into()).into()).into(),
                NOT_SENT,
            ),
            ("connector without its local address", no_local_address().await.into(), NOT_SENT),
            (
                "connector without its local address, in another client's error",
                Unknown(no_local_address().await.into()).into(),
                NOT_SENT,
            ),
            ("body with a connector's error", body(not_connected().await).await.into(), MAYBE),
            ("body refused", body(refused()).await.into(), MAYBE),
            ("body with a connect error", body(connect(refused()).await).await.into(), MAYBE),
            ("body canceled", body(cancelled(b"").await).await.into(), MAYBE),
            ("queued, then closed", cancelled(b"").await.into(), NOT_SENT),
            ("queued, then a stray response", cancelled(b"HTTP/1.1 200 OK\r\n\r\n").await.into(), NOT_SENT),
            ("closed before", closed().await.into(), NOT_SENT),
            ("read, then closed", unanswered().await.into(), MAYBE),
            ("stream refused by the server", refused_stream().await.into(), NOT_SENT),
            ("body's stream refused by another server", body(refused_stream().await).await.into(), MAYBE),
            ("stream refused by h2 itself", h2::Error::from(h2::Reason::REFUSED_STREAM).into(), MAYBE),
            ("marked not sent", not_sent().into(), NOT_SENT),
            ("marked not sent, around a reset", DeliveryError::not_sent(unanswered().await).into(), NOT_SENT),
            ("marked not sent, in an unknown error", Unknown(not_sent().into()).into(), MAYBE),
            ("marked not sent, in an I/O error", io::Error::other(not_sent()).into(), MAYBE),
            ("marked not sent, in a body", body(not_sent()).await.into(), MAYBE),
            (
                "marked not sent, above a connect error, in an unknown error",
                Unknown(DeliveryError::not_sent(connect(refused()).await).into()).into(),
                MAYBE,
            ),
            ("marked not sent, by a connector", connect(not_sent()).await.into(), NOT_SENT),
            ("marked maybe processed", maybe().into(), MAYBE),
            ("marked maybe processed, in an unknown error", Unknown(maybe().into()).into(), MAYBE),
            (
                "marked maybe processed, around a connect error",
                DeliveryError::maybe_processed(connect(refused()).await).into(),
                MAYBE,
            ),
            (
                "marked maybe processed, around one in an unknown error",
                Unknown(DeliveryError::maybe_processed(connect(refused()).await).into()).into(),
                MAYBE,
            ),
            (
                "marked maybe processed, around not sent",
                DeliveryError::maybe_processed(not_sent()).into(),
                MAYBE,
            ),
            ("marked not sent, around maybe processed", DeliveryError::not_sent(maybe()).into(), NOT_SENT),
            (
                "marked maybe processed, in a refused connection",
                io::Error::new(ConnectionRefused, maybe()).into(),
                MAYBE,
            ),
            ("shed", Overloaded::new().into(), NOT_SENT),
            ("shed, in an I/O error", io::Error::other(Overloaded::new()).into(), MAYBE),
            ("no transport error", "text".into(), MAYBE),
            ("of a retry layer below", Unknown(retried().await.into()).into(), NOT_SENT),
            (
                "of a retry layer below, after an attempt that may have been processed",
                Unknown(retried().await.after_processing().into()).into(),
                MAYBE,
            ),
        ];
        #[cfg(feature = "reqwest")]
        table.push((
            "marked maybe processed, lasting",
            DeliveryError::maybe_processed(connect(refused()).await).lasting().into(),
            MAYBE_EACH_TIME,
        ));
        // Without a connector's error around it the kind may be of an established connection.
        for kind in [HostUnreachable, NetworkUnreachable, AddrNotAvailable] {
            let error = || io::Error::from(kind);
            table.extend([
                ("unreachable, of the service itself", error().into(), MAYBE),
                ("unreachable, in an unknown error", Unknown(error().into()).into(), MAYBE),
                ("unreachable, in an I/O error", io::Error::other(error()).into(), MAYBE),
                ("unreachable, in a body", body(error()).await.into(), MAYBE),
                ("unreachable, in a connect error", connect(error()).await.into(), NOT_SENT),
                (
                    "unreachable, in a connect error, in an unknown error",
                    Unknown(connect(error()).await.into()).into(),
                    NOT_SENT,
                ),
            ]);
        }
        for (name, error, expected) in table {
            let error = Error::from_service(error);
            assert_eq!(proof(&error), expected, "{name}: {error:?}");
        }
    }

    #[cfg(feature = "rustls")]
    #[tokio::test]
    async fn does_not_retry_after_an_untrusted_certificate() {
        use rustls::{AlertDescription, CertificateError, Error as Tls};

        for (tls, expected) in [
            (Tls::InvalidCertificate(CertificateError::Expired), NEVER_SENT),
            (Tls::NoCertificatesPresented, NEVER_SENT),
            (Tls::AlertReceived(AlertDescription::InternalError), NOT_SENT),
        ] {
            // hyper-rustls wraps what tokio-rustls wraps.
            let error =
                connect(io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls.clone()))).await;
            assert_eq!(proof(&Error::from_service(error)), expected, "{tls}");
        }
        let from_a_body = body(Tls::InvalidCertificate(CertificateError::Expired)).await;
        assert_eq!(proof(&Error::from_service(from_a_body)), MAYBE);
    }
}
