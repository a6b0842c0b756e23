//! "Was it sent?": what the error of an attempt proves about the request. In doubt it was.
//!
//! The verdict is the first transport error's that the chain of causes has. What lies below it is not asked: a
//! request's body that failed brings the errors of another connection with it. A client that isn't known here may hand
//! those on as they are, so that nothing at all is asked where the body is known to have failed.

use std::{error::Error as StdError, io};

use http::Uri;
use hyper_util::client::legacy::{self, connect::HttpConnector};
use tower::load_shed::error::Overloaded;

use crate::error::{Error, Unproven, cause};

/// How far a request got whose attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// Provably not into anybody's hands. It can be sent again, whatever its method.
    No,
    /// Nor will the next one be, before somebody changes a certificate, a setting or the request.
    Never,
    /// Perhaps. It can be sent again when its method is idempotent.
    Maybe,
    /// Perhaps, and the next attempt would come to the same.
    Done,
}

/// What hyper-util's connector fails with, which has no name that others may use. Clients that make their own
/// connections with it, as tonic's channel does, wrap it in an error of theirs.
type NotConnected = <HttpConnector as tower_service::Service<Uri>>::Error;

/// The verdict on what the inner service failed with.
pub(super) fn sent(error: &Error) -> Sent {
    let first = error.original();
    // No connection is refused once it stands, so this is the service's own word that it had none. Wrapped in an
    // error that isn't known here it may be of another connection, such as one that the request's body came over.
    if first.and_then(|error| error.downcast_ref::<io::Error>()).is_some_and(is_refused) {
        return Sent::No;
    }
    // tower's `LoadShed` says so in place of calling what is under it. Of the service itself only, for the same reason.
    if first.is_some_and(|error| error.is::<Overloaded>()) {
        return Sent::No;
    }
    let mut next = first;
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Unproven>() {
            return if error.is_lasting() { Sent::Done } else { Sent::Maybe };
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
        if error.is::<NotConnected>() {
            return Sent::No;
        }
        next = cause(error);
    }
    Sent::Maybe
}

/// hyper-util's client names the connection that an error occurred on. With none the request was not handed to any:
/// it could not connect, or TLS or HTTP/2 failed to begin.
fn by_client(error: &legacy::Error) -> Sent {
    // Their kinds have no name that others may use, so their text is. Should that change, the answer is the one below.
    if error.to_string().starts_with("client error (User") {
        return Sent::Never;
    }
    if error.is_connect() || error.connect_info().is_none() {
        return if is_permanent(error) { Sent::Never } else { Sent::No };
    }
    match error.source().and_then(|error| error.downcast_ref::<hyper::Error>()) {
        // hyper also says of an upgrade that it was cancelled, but this client waits for none.
        Some(error) => by_connection(error, error.is_canceled()),
        None => Sent::Maybe,
    }
}

fn by_connection(error: &hyper::Error, unbegun: bool) -> Sent {
    match error.source().and_then(|error| error.downcast_ref()) {
        _ if unbegun => Sent::No,
        // The body's own error, whose causes tell of something else; or hyper's task is gone, with all it knew.
        _ if error.is_user() => Sent::Maybe,
        Some(error) => by_stream(error),
        // Closed or reset, perhaps after the request was read: for HTTP/1.1 both look the same from here.
        None => Sent::Maybe,
    }
}

/// REFUSED_STREAM is the server's word that it did not process the request (RFC 9113 §8.7). Not when it is h2 itself
/// that refused a stream.
///
/// GOAWAY is no proof. The word is as good for streams above its last id, and h2 gives its error to those; but it
/// does not show the id, and hyper has the same error for a request below it: one that it queued in the moment in which
/// another thread read the GOAWAY. h2's task may send that one yet, before it is reset.
fn by_stream(error: &h2::Error) -> Sent {
    let refused = error.is_remote() && error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    if refused { Sent::No } else { Sent::Maybe }
}

/// Whether hyper, used without hyper-util's client, gave a request back before it wrote any of it, or had no connection
/// any more when it was asked whether it was ready, which is the only time at which a client's is closed. An upgrade that
/// did not come is cancelled too, after the request was answered: hyper's type for that can't be named, so its texts
/// for the others are. Should they change, the answer is the careful one.
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

fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

/// A server that shows the wrong certificate, or shares no version or cipher with us, will do so again; and whoever
/// stands there in its place should be heard of now, and not after the attempts that went there by bad luck.
#[cfg(feature = "rustls")]
fn is_permanent(error: &legacy::Error) -> bool {
    use rustls::Error::{InvalidCertificate, NoCertificatesPresented, PeerIncompatible};

    let mut next = error.source();
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref() {
            return matches!(error, InvalidCertificate(_) | NoCertificatesPresented | PeerIncompatible(_));
        }
        next = cause(error);
    }
    false
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
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use io::ErrorKind::{ConnectionRefused, ConnectionReset};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        net::{TcpListener, TcpStream},
    };

    use tower::ServiceExt;

    use super::*;
    use crate::error::BoxError;

    type Body = UnsyncBoxBody<Bytes, BoxError>;

    /// An error that isn't known here, of a client or of a body.
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
        // hyper sends a GET without its body when it doesn't know the length.
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static("http://localhost/");
        request
    }

    /// What hyper-util's client says when the connector fails so.
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

    /// What hyper-util's client says when the request's body fails so, on a connection that stands.
    async fn body(error: impl Into<BoxError>) -> legacy::Error {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut request = request(stream::iter([error.into()]));
        *request.uri_mut() = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        legacy::Client::builder(TokioExecutor::new()).build_http().request(request).await.unwrap_err()
    }

    /// What hyper-util's connector says, to whoever uses it, of a port that nobody listens on.
    async fn not_connected() -> NotConnected {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri: Uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        drop(listener);
        HttpConnector::new().oneshot(uri).await.unwrap_err()
    }

    async fn connection()
    -> (http1::SendRequest<Body>, http1::Connection<TokioIo<DuplexStream>, Body>, DuplexStream) {
        let (ours, theirs) = duplex(1024);
        let (sender, connection) = http1::handshake(TokioIo::new(ours)).await.unwrap();
        (sender, connection, theirs)
    }

    /// hyper's own word, without hyper-util, for a request that waits when its connection ends or speaks first.
    async fn cancelled(by: &[u8]) -> hyper::Error {
        let (mut sender, connection, mut theirs) = connection().await;
        let sent = sender.send_request(request(stream::empty()));
        theirs.write_all(by).await.unwrap();
        drop(theirs);
        tokio::join!(sent, connection).0.unwrap_err()
    }

    /// hyper's word, without hyper-util, on a connection that was over before there was a request.
    async fn closed() -> hyper::Error {
        let (mut sender, connection, _) = connection().await;
        drop(connection);
        sender.ready().await.unwrap_err()
    }

    /// hyper's own word, without hyper-util, when the connection ends after the request was read.
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

    /// h2's word when a server refuses a stream.
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

    #[tokio::test]
    async fn the_first_transport_error_in_the_chain_decides() {
        let refused = || io::Error::from(ConnectionRefused);
        let mut of_version_3 = request(stream::empty());
        *of_version_3.version_mut() = Version::HTTP_3;
        let unsupported = legacy::Client::builder(TokioExecutor::new()).build_http().request(of_version_3);
        let table: Vec<(&str, BoxError, Sent)> = vec![
            ("refused", refused().into(), Sent::No),
            ("reset", io::Error::from(ConnectionReset).into(), Sent::Maybe),
            ("refused, of who knows what", Unknown(refused().into()).into(), Sent::Maybe),
            ("refused, within another", io::Error::other(refused()).into(), Sent::Maybe),
            ("could not connect", connect(refused()).await.into(), Sent::No),
            ("could not connect, for whatever", connect("no reason").await.into(), Sent::No),
            ("could not connect, wrapped", Unknown(connect(refused()).await.into()).into(), Sent::No),
            ("the same within io", io::Error::other(connect(refused()).await).into(), Sent::No),
            ("no such version", unsupported.await.unwrap_err().into(), Sent::Never),
            ("no connection, of its connector", not_connected().await.into(), Sent::No),
            (
                "no connection, of another client",
                Unknown(Unknown(not_connected().await.into()).into()).into(),
                Sent::No,
            ),
            ("body had no connection", body(not_connected().await).await.into(), Sent::Maybe),
            ("body refused", body(refused()).await.into(), Sent::Maybe),
            ("body could not connect", body(connect(refused()).await).await.into(), Sent::Maybe),
            ("body cancelled", body(cancelled(b"").await).await.into(), Sent::Maybe),
            ("queued, and closed", cancelled(b"").await.into(), Sent::No),
            (
                "queued, and an answer to nothing",
                cancelled(b"HTTP/1.1 200 OK\r\n\r\n").await.into(),
                Sent::No,
            ),
            ("closed before", closed().await.into(), Sent::No),
            ("read, and closed", unanswered().await.into(), Sent::Maybe),
            ("refused by the server's frame", refused_stream().await.into(), Sent::No),
            (
                "body refused by another server's frame",
                body(refused_stream().await).await.into(),
                Sent::Maybe,
            ),
            ("unproven", Unproven::new(connect(refused()).await).into(), Sent::Maybe),
            ("unproven, for good", Unproven::for_good(connect(refused()).await).into(), Sent::Done),
            ("h2, by nobody's frame", h2::Error::from(h2::Reason::REFUSED_STREAM).into(), Sent::Maybe),
            ("shed", Overloaded::new().into(), Sent::No),
            ("shed, somewhere", io::Error::other(Overloaded::new()).into(), Sent::Maybe),
            ("no transport error at all", "text".into(), Sent::Maybe),
        ];
        for (name, error, expected) in table {
            let error = Error::from_service(error);
            assert_eq!(sent(&error), expected, "{name}: {error:?}");
        }
    }

    #[cfg(feature = "rustls")]
    #[tokio::test]
    async fn a_certificate_that_is_not_trusted_is_not_worth_another_attempt() {
        use rustls::{AlertDescription, CertificateError, Error as Tls};

        for (tls, expected) in [
            (Tls::InvalidCertificate(CertificateError::Expired), Sent::Never),
            (Tls::NoCertificatesPresented, Sent::Never),
            (Tls::AlertReceived(AlertDescription::InternalError), Sent::No),
        ] {
            // As hyper-rustls wraps what tokio-rustls wraps.
            let error =
                connect(io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls.clone()))).await;
            assert_eq!(sent(&Error::from_service(error)), expected, "{tls}");
        }
        let from_a_body = body(Tls::InvalidCertificate(CertificateError::Expired)).await;
        assert_eq!(sent(&Error::from_service(from_a_body)), Sent::Maybe);
    }
}
