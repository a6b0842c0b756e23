use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use tower::{ServiceExt, util::BoxCloneSyncService};
use tower_layer::Layer;
use tower_service::Service;

use super::StackBuilder;
use crate::{
    body::{Body, ReplayBody},
    error::BoxError,
};

type Boxed = BoxCloneSyncService<Request<ReplayBody<Body>>, Response<Body>, BoxError>;

/// The layers between a stack and its transport, innermost first.
#[derive(Clone, Default)]
pub(crate) struct TransportLayers(Vec<Arc<dyn Fn(TransportService) -> TransportService + Send + Sync>>);

/// The service to which [`StackBuilder::with_transport_layer`] adds a layer: the transport of a client, or its custom
/// service. Its error is the service's own error, or a [`DeliveryError`](crate::error::DeliveryError) of a layer.
#[derive(Clone)]
pub struct TransportService(Boxed);

impl StackBuilder {
    /// Adds a layer between the stack and the transport of a client. It sees each attempt, with all headers and the
    /// credential. The first layer is the outermost.
    ///
    /// Use it to limit the requests in progress, to log what is sent, or to read a body within an attempt. The layer is
    /// inside the attempt timeout. Its error fails the attempt.
    ///
    /// ```
    /// use tower::limit::GlobalConcurrencyLimitLayer;
    /// use tower_outbound::Client;
    ///
    /// # fn run() -> Result<(), tower_outbound::InvalidConfig> {
    /// // At most five requests of this client are in progress, until their response headers.
    /// let client = Client::builder("https://api.example.com")?
    ///     .without_credential()
    ///     .with_transport_layer(GlobalConcurrencyLimitLayer::new(5))
    ///     .client()?;
    /// # Ok(())
    /// # }
    /// # run().unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`layer`](Self::layer) returns an error, because a stack that is used as a layer has no transport. Add the layer
    /// to the custom service instead.
    #[cfg_attr(docsrs, doc(cfg(feature = "client")))]
    pub fn with_transport_layer<L, R>(mut self, layer: L) -> Self
    where
        L: Layer<TransportService> + Send + Sync + 'static,
        L::Service: Service<Request<ReplayBody<Body>>, Response = Response<R>, Error: Into<BoxError>>,
        L::Service: Clone + Send + Sync + 'static,
        <L::Service as Service<Request<ReplayBody<Body>>>>::Future: Send + 'static,
        R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        self.transport_layers
            .0
            .insert(0, Arc::new(move |inner: TransportService| TransportService::new(layer.layer(inner))));
        self
    }
}

#[cfg(feature = "decompression")]
impl StackBuilder {
    /// Asks the server for compressed responses (`accept-encoding: gzip, br`), and decompresses their bodies. All limits
    /// of bodies count decompressed bytes.
    ///
    /// The layer is a [transport layer](Self::with_transport_layer), tower-http's `DecompressionLayer`.
    #[cfg_attr(docsrs, doc(cfg(feature = "decompression")))]
    pub fn with_decompression(self) -> Self {
        self.with_transport_layer(tower_http::decompression::DecompressionLayer::new())
    }
}

impl TransportLayers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn layer(&self, service: TransportService) -> TransportService {
        self.0.iter().fold(service, |service, layer| layer(service))
    }
}

impl fmt::Debug for TransportLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} layers", self.0.len())
    }
}

impl TransportService {
    pub(crate) fn new<S, R>(service: S) -> Self
    where
        S: Service<Request<ReplayBody<Body>>, Response = Response<R>, Error: Into<BoxError>>,
        S: Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let service = service.map_response(|response| response.map(Body::new)).map_err(Into::into);
        Self(BoxCloneSyncService::new(service))
    }
}

impl Service<Request<ReplayBody<Body>>> for TransportService {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = <Boxed as Service<Request<ReplayBody<Body>>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReplayBody<Body>>) -> Self::Future {
        self.0.call(request)
    }
}

impl fmt::Debug for TransportService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransportService")
    }
}
