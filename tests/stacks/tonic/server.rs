//! Runs a tonic server on loopback that sends scripted responses and records the calls.

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use tokio::{net::TcpListener, time::Instant};
use tokio_stream::{Stream, StreamExt, wrappers::TcpListenerStream};
use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::{MetadataMap, MetadataValue},
    server::{ClientStreamingService, NamedService},
};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_server::{Health, HealthServer},
};

/// The scripted response to one call. The last response of a script applies to all later calls.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scripted {
    Success,
    Failure(Code),
    /// A failure that requests a delay with the trailer `grpc-retry-pushback-ms`.
    Pushback(Code, &'static str),
    NoResponse,
}

/// Describes a call that the server received.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) metadata: MetadataMap,
    pub(crate) services: Vec<String>,
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    script: Arc<[Scripted]>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    pub(crate) async fn start(script: impl IntoIterator<Item = Scripted>) -> Self {
        Self::over(TcpListener::bind("127.0.0.1:0").await.unwrap(), script)
    }

    pub(crate) fn over(listener: TcpListener, script: impl IntoIterator<Item = Scripted>) -> Self {
        let address = listener.local_addr().unwrap();
        let server = Self { address, script: script.into_iter().collect(), seen: Arc::default() };
        let serving = tonic::transport::Server::builder()
            .add_service(HealthServer::new(server.clone()))
            .add_service(Tally(server.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(serving);
        server
    }

    pub(crate) fn uri(&self) -> http::Uri {
        format!("http://{}", self.address).parse().unwrap()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn calls(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    async fn respond(&self, metadata: MetadataMap, services: Vec<String>) -> Result<(), Status> {
        let number = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(Seen { at: Instant::now(), metadata, services });
            seen.len() - 1
        };
        match self.script[number.min(self.script.len() - 1)] {
            Scripted::Success => Ok(()),
            Scripted::Failure(code) => Err(Status::new(code, "as scripted")),
            Scripted::Pushback(code, millis) => {
                let mut status = Status::new(code, "as scripted");
                let millis = MetadataValue::from_static(millis);
                status.metadata_mut().insert("grpc-retry-pushback-ms", millis);
                Err(status)
            }
            Scripted::NoResponse => std::future::pending().await,
        }
    }
}

type ResponseStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Health for Server {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        self.respond(metadata, vec![message.service]).await?;
        Ok(Response::new(HealthCheckResponse { status: 1 }))
    }

    type WatchStream = ResponseStream;

    /// Sends three messages, followed by the scripted status in the trailers.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<ResponseStream>, Status> {
        let (metadata, _, message) = request.into_parts();
        let end = self.respond(metadata, vec![message.service]).await;
        let messages = tokio_stream::iter((1..=3).map(|status| Ok(HealthCheckResponse { status })));
        let end = tokio_stream::iter(end.err().map(Err));
        Ok(Response::new(Box::pin(messages.chain(end))))
    }
}

/// A client-streaming method, written as tonic's code generator would write it. The method responds with the number of
/// messages.
#[derive(Clone)]
struct Tally(Server);

impl NamedService for Tally {
    const NAME: &'static str = "test.Tally";
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl tower::Service<http::Request<tonic::body::Body>> for Tally {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let method = self.clone();
        let mut grpc = tonic::server::Grpc::new(tonic_prost::ProstCodec::default());
        Box::pin(async move { Ok(grpc.client_streaming(method, request).await) })
    }
}

impl ClientStreamingService<HealthCheckRequest> for Tally {
    type Response = HealthCheckResponse;
    type Future = BoxFuture<Result<Response<HealthCheckResponse>, Status>>;

    fn call(&mut self, request: Request<Streaming<HealthCheckRequest>>) -> Self::Future {
        let server = self.0.clone();
        Box::pin(async move {
            let (metadata, _, mut messages) = request.into_parts();
            let mut services = Vec::new();
            while let Some(message) = messages.message().await? {
                services.push(message.service);
            }
            let status = services.len().try_into().unwrap_or(i32::MAX);
            server.respond(metadata, services).await?;
            Ok(Response::new(HealthCheckResponse { status }))
        })
    }
}
