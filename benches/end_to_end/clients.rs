//! Defines how each measured client sends a request and reads the response.

use std::{
    hash::{BuildHasher, RandomState},
    hint::black_box,
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version,
    header::{ACCEPT, AUTHORIZATION, HOST, USER_AGENT},
};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, time::Instant};
use tower::{Service, ServiceExt};
use tower_outbound::{
    limit::{LocalLimiter, ResponseInfo},
    stack::StackBuilder,
};
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

const ACCEPTED: HeaderValue = HeaderValue::from_static("application/json");
const AGENT: HeaderValue = HeaderValue::from_static(StackBuilder::DEFAULT_USER_AGENT);
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

fn get(uri: Uri) -> Result<Request<NoBody>, http::Error> {
    Request::get(uri).header(ACCEPT, ACCEPTED).header(USER_AGENT, AGENT).body(NoBody::new())
}

/// Adds the fields that the layers add: a key, and an id that differs in each request. The id is as long as a UUID, has
/// the same characters, and costs a few nanoseconds.
pub(super) struct Fields {
    key: HeaderValue,
    state: u64,
}

impl Fields {
    pub(super) fn new() -> Self {
        let mut key = HeaderValue::from_static("Bearer s3cret");
        key.set_sensitive(true);
        Self { key, state: RandomState::new().hash_one(()) | 1 }
    }

    pub(super) fn add(&mut self, headers: &mut HeaderMap) -> Result<(), BoxError> {
        let mut id = *b"01234567-0123-7123-8123-0123456789ab";
        for byte in id.iter_mut().filter(|byte| **byte != b'-') {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = b"0123456789abcdef"[(self.state >> 60) as usize];
        }
        headers.insert(REQUEST_ID, HeaderValue::from_maybe_shared(Bytes::from_owner(id))?);
        headers.insert(AUTHORIZATION, self.key.clone());
        Ok(())
    }

    fn all(&mut self) -> Result<HeaderMap, BoxError> {
        let mut headers = HeaderMap::from_iter([(ACCEPT, ACCEPTED), (USER_AGENT, AGENT)]);
        self.add(&mut headers)?;
        Ok(headers)
    }
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

/// The bare client, which sends the same header fields as the layers.
pub(super) struct WithFields<S>(pub(super) S, pub(super) Uri, pub(super) Fields);

impl<S, B> BenchClient for WithFields<S>
where
    S: Service<Request<NoBody>, Response = Response<B>, Error: Into<BoxError>, Future: Send> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send,
{
    async fn call(&mut self) -> Result<(), BoxError> {
        let mut request = get(self.1.clone())?;
        self.2.add(request.headers_mut())?;
        let service = self.0.ready().await.map_err(Into::into)?;
        let response = service.call(request);
        read(response.await.map_err(Into::into)?).await
    }
}

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

/// Sends a request as a stack does, but in one function around the bare client. Takes a permit, and stores the times of
/// the call in the extensions of the request and the response. Copies the method, the path and two headers, and clones
/// the service, which a retry would need. `timeout` limits the attempt. Keeps no record of attempts and writes no logs.
pub(super) struct ByHand<S> {
    pub(super) client: WithFields<S>,
    pub(super) bucket: LocalLimiter,
    pub(super) timeout: Option<Duration>,
}

/// The start and the end of a call.
type Times = Arc<Mutex<[Option<Instant>; 2]>>;

impl<S, B> BenchClient for ByHand<S>
where
    S: Service<Request<NoBody>, Response = Response<B>, Error: Into<BoxError>, Future: Send>,
    S: Clone + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send,
{
    async fn call(&mut self) -> Result<(), BoxError> {
        let WithFields(service, uri, fields) = &mut self.client;
        let mut request = get(uri.clone())?;
        let times = Times::new(Mutex::new([Some(Instant::now()), None]));
        request.extensions_mut().insert(Arc::clone(&times));
        let mut recorded = [0; 160];
        let mut rest = &mut recorded[..];
        rest.write_all(request.method().as_str().as_bytes())?;
        rest.write_all(request.uri().path().as_bytes())?;
        for (name, value) in request.headers() {
            rest.write_all(name.as_str().as_bytes())?;
            rest.write_all(value.as_bytes())?;
        }
        let mut permit = self.bucket.try_acquire()?;
        permit.mark_sent(permit.granted_at());
        fields.add(request.headers_mut())?;
        let mut attempt = service.clone();
        let response = attempt.ready().await.map_err(Into::into)?.call(request);
        let mut response = match self.timeout {
            Some(limit) => tokio::time::timeout(limit, response).await?,
            None => response.await,
        }
        .map_err(Into::into)?;
        permit.complete(&ResponseInfo::new(response.status(), response.headers()));
        if let Ok(mut times) = times.lock() {
            times[1] = Some(Instant::now());
        }
        response.extensions_mut().insert(times);
        black_box(&recorded);
        read(response).await
    }
}

/// The client of this crate.
pub(super) struct Outbound(pub(super) tower_outbound::Client);

impl BenchClient for Outbound {
    async fn call(&mut self) -> Result<(), BoxError> {
        let response = self.0.get("/v1/resources").header(ACCEPT, ACCEPTED).await?;
        check(response.status(), &response.bytes().await?)
    }
}

/// A call as in the README: the builder adds a query, and the body is read as a whole.
pub(super) struct OutboundQuery(pub(super) tower_outbound::Client);

impl BenchClient for OutboundQuery {
    async fn call(&mut self) -> Result<(), BoxError> {
        let call = self.0.get("/v1/resources").query(&[("base", "EUR")]).header(ACCEPT, ACCEPTED);
        let response = call.await?;
        check(response.status(), &response.bytes().await?)
    }
}

pub(super) struct Reqwest(pub(super) reqwest::Client, pub(super) reqwest::Url, pub(super) Fields);

impl BenchClient for Reqwest {
    async fn call(&mut self) -> Result<(), BoxError> {
        let request = self.0.get(self.1.clone()).headers(self.2.all()?);
        let response = request.send().await?;
        check(response.status(), &response.bytes().await?)
    }
}

pub(super) struct Middleware(
    pub(super) reqwest_middleware::ClientWithMiddleware,
    pub(super) reqwest::Url,
    pub(super) Fields,
);

impl BenchClient for Middleware {
    async fn call(&mut self) -> Result<(), BoxError> {
        let request = self.0.get(self.1.clone()).headers(self.2.all()?);
        let response = request.send().await?;
        check(response.status(), &response.bytes().await?)
    }
}
