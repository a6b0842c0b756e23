use ::hyper::client::conn::http1;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Uri, Version};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    net::{TcpListener, TcpStream},
};
use tower::ServiceExt;

use super::*;
use crate::error::transport::hyper::ConnectError;

type Body = UnsyncBoxBody<Bytes, BoxError>;

fn request(body: impl stream::Stream<Item = BoxError> + Send + 'static) -> Request<Body> {
    let frames = body.map(Err::<Frame<Bytes>, _>);
    let mut request = Request::new(StreamBody::new(frames).boxed_unsync());
    // The method is POST, because hyper sends a GET without its body if the body's length is unknown.
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static("http://localhost/");
    request
}

/// Returns the error of hyper-util's client if its connector fails with `error`.
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

/// Returns the error of hyper-util's client if the request's body fails with `error` on an established connection.
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

/// Returns the error of hyper-util's connector for a local address (from RFC 5737) that this machine does not have.
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

/// Queues a request on a connection of hyper, without hyper-util, and returns hyper's error. The server sends `by` and
/// closes the connection before hyper writes the request.
async fn cancelled(by: &[u8]) -> ::hyper::Error {
    let (mut sender, connection, mut theirs) = connection().await;
    let sent = sender.send_request(request(stream::empty()));
    theirs.write_all(by).await.unwrap();
    drop(theirs);
    tokio::join!(sent, connection).0.unwrap_err()
}

/// Returns the error of hyper, without hyper-util, if the connection closed before the request.
async fn closed() -> ::hyper::Error {
    let (mut sender, connection, _) = connection().await;
    drop(connection);
    sender.ready().await.unwrap_err()
}

/// Returns the error of hyper, without hyper-util, if the connection closes after the server read the request.
async fn no_reply() -> ::hyper::Error {
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
        let (response, _) =
            sender.send_request(Request::get("http://localhost/").body(()).unwrap(), true).unwrap();
        tokio::select! {
            response = response => response.unwrap_err(),
            _ = connection => panic!("the connection ended before the response"),
        }
    };
    tokio::select! {
        error = client => error,
        () = server => panic!("the server ended before the client"),
    }
}

#[tokio::test]
async fn first_transport_or_delivery_error_determines_the_delivery() {
    let retried = async || Error::from_service(connect(refused()).await);
    let mut of_version_3 = request(stream::empty());
    *of_version_3.version_mut() = Version::HTTP_3;
    let unsupported = legacy::Client::builder(TokioExecutor::new()).build_http().request(of_version_3);
    let mut table: Vec<(&str, BoxError, Proof)> = vec![
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
        ("body with a refused connection", body(refused()).await.into(), MAYBE),
        ("body with a connect error", body(connect(refused()).await).await.into(), MAYBE),
        ("body with a canceled request", body(cancelled(b"").await).await.into(), MAYBE),
        ("queued, then connection closed", cancelled(b"").await.into(), NOT_SENT),
        ("queued, then a stray response", cancelled(b"HTTP/1.1 200 OK\r\n\r\n").await.into(), NOT_SENT),
        ("connection closed before the request", closed().await.into(), NOT_SENT),
        ("read by the server, then closed", no_reply().await.into(), MAYBE),
        ("stream refused by the server", refused_stream().await.into(), NOT_SENT),
        ("body's stream refused by another server", body(refused_stream().await).await.into(), MAYBE),
        ("stream refused by h2 itself", h2::Error::from(h2::Reason::REFUSED_STREAM).into(), MAYBE),
        ("marked not sent, around a reset", DeliveryError::not_sent(no_reply().await).into(), NOT_SENT),
        ("marked not sent, in a body", body(not_sent()).await.into(), MAYBE),
        (
            "marked not sent, above a connect error, in an unknown error",
            Unknown(DeliveryError::not_sent(connect(refused()).await).into()).into(),
            MAYBE,
        ),
        ("marked not sent, by a connector", connect(not_sent()).await.into(), NOT_SENT),
        (
            "marked maybe processed, around a connect error",
            DeliveryError::maybe_processed(connect(refused()).await).into(),
            MAYBE,
        ),
        (
            "marked maybe processed, around a connect error, in an unknown error",
            Unknown(DeliveryError::maybe_processed(connect(refused()).await).into()).into(),
            MAYBE,
        ),
        ("error of an inner retry layer", Unknown(retried().await.into()).into(), NOT_SENT),
        (
            "error of an inner retry layer, after an attempt that may have been processed",
            Unknown(after_processing(retried().await).into()).into(),
            MAYBE,
        ),
    ];
    for kind in [HostUnreachable, NetworkUnreachable, AddrNotAvailable] {
        let error = || io::Error::from(kind);
        table.extend([
            ("unreachable, in a body", body(error()).await.into(), MAYBE),
            ("unreachable, in a connect error", connect(error()).await.into(), NOT_SENT),
            (
                "unreachable, in a connect error, in an unknown error",
                Unknown(connect(error()).await.into()).into(),
                NOT_SENT,
            ),
        ]);
    }
    check(table);
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn request_is_not_retried_after_an_untrusted_certificate() {
    use rustls::{AlertDescription, CertificateError, Error as Tls};

    for (tls, expected) in [
        (Tls::InvalidCertificate(CertificateError::Expired), NEVER_SENT),
        (Tls::NoCertificatesPresented, NEVER_SENT),
        (Tls::AlertReceived(AlertDescription::InternalError), NOT_SENT),
    ] {
        // Wraps the error twice, as tokio-rustls and hyper-rustls do.
        let error = connect(io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls.clone()))).await;
        check([("connecting", error.into(), expected)]);
    }
    let from_a_body = body(Tls::InvalidCertificate(CertificateError::Expired)).await;
    check([("from a body", from_a_body.into(), MAYBE)]);
}
