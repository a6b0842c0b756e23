//! Defines how each measured client sends a request and reads the response.

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, Version, header::HOST};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tower::{Service, ServiceExt};
use tower_outbound_peers::{BODY, BenchClient, BoxError};

pub(super) type NoBody = Empty<Bytes>;

fn check(status: StatusCode, body: &Bytes) -> Result<(), BoxError> {
    match status == StatusCode::OK && body == BODY {
        true => Ok(()),
        false => Err(format!("unexpected response: {status} with {} bytes", body.len()).into()),
    }
}

async fn read<B>(response: Response<B>) -> Result<(), BoxError>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let status = response.status();
    check(status, &response.into_body().collect().await.map_err(Into::into)?.to_bytes())
}

fn get(uri: Uri) -> Result<Request<NoBody>, http::Error> {
    Request::get(uri).header("accept", "application/json").body(NoBody::new())
}

/// A hyper connection without a pool. With HTTP/1.1, each task has its own connection. With HTTP/2, all tasks share one
/// connection.
pub(super) enum Connection {
    Http1(conn::http1::SendRequest<NoBody>, Uri),
    Http2(conn::http2::SendRequest<NoBody>, Uri),
}

impl Connection {
    pub(super) async fn open(uri: Uri, version: Version) -> Result<Self, BoxError> {
        let authority = uri.authority().ok_or("the URI has no host")?;
        let stream = TcpStream::connect(authority.as_str()).await?;
        stream.set_nodelay(true)?;
        let io = TokioIo::new(stream);
        if version == Version::HTTP_2 {
            let (sender, connection) = conn::http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(connection);
            return Ok(Self::Http2(sender, uri));
        }
        let (sender, connection) = conn::http1::handshake(io).await?;
        tokio::spawn(connection);
        Ok(Self::Http1(sender, uri))
    }

    /// Returns another handle to the same HTTP/2 connection, or `None` for HTTP/1.1.
    pub(super) fn shared(&self) -> Option<Self> {
        match self {
            Self::Http1(..) => None,
            Self::Http2(sender, uri) => Some(Self::Http2(sender.clone(), uri.clone())),
        }
    }
}

impl BenchClient for Connection {
    async fn call(&mut self) -> Result<(), BoxError> {
        match self {
            Self::Http1(sender, uri) => {
                let mut request = get(Uri::from_static("/v1/resources"))?;
                let host = uri.authority().map_or("", |authority| authority.as_str());
                request.headers_mut().insert(HOST, host.parse()?);
                sender.ready().await?;
                read(sender.send_request(request).await?).await
            }
            Self::Http2(sender, uri) => {
                sender.ready().await?;
                read(sender.send_request(get(uri.clone())?).await?).await
            }
        }
    }
}

/// A service that accepts absolute URIs: hyper-util's client, or a stack over hyper-util's client.
pub(super) struct ServiceClient<S>(pub(super) S, pub(super) Uri);

impl<S, B> BenchClient for ServiceClient<S>
where
    S: Service<Request<NoBody>, Response = Response<B>, Error: Into<BoxError>, Future: Send> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send,
{
    async fn call(&mut self) -> Result<(), BoxError> {
        let request = get(self.1.clone())?;
        let service = self.0.ready().await.map_err(Into::into)?;
        let response = service.call(request);
        read(response.await.map_err(Into::into)?).await
    }
}

/// The client of this crate.
pub(super) struct Outbound(pub(super) tower_outbound::Client);

impl BenchClient for Outbound {
    async fn call(&mut self) -> Result<(), BoxError> {
        let response = self.0.get("/v1/resources").header("accept", "application/json").await?;
        check(response.status(), &response.bytes().await?)
    }
}

pub(super) struct Reqwest(pub(super) reqwest::Client, pub(super) reqwest::Url);

impl BenchClient for Reqwest {
    async fn call(&mut self) -> Result<(), BoxError> {
        let request = self.0.get(self.1.clone()).header("accept", "application/json");
        let response = request.send().await?;
        check(response.status(), &response.bytes().await?)
    }
}

pub(super) struct Middleware(pub(super) reqwest_middleware::ClientWithMiddleware, pub(super) reqwest::Url);

impl BenchClient for Middleware {
    async fn call(&mut self) -> Result<(), BoxError> {
        let request = self.0.get(self.1.clone()).header("accept", "application/json");
        let response = request.send().await?;
        check(response.status(), &response.bytes().await?)
    }
}
