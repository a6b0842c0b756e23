use bytes::Bytes;
use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::StackBuilder;
use crate::{
    body::{Body, ReplayBody},
    error::BoxError,
    stack::TransportService,
};

/// Setters of the layers below the stack of a client.
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
        self.transport_layers.add(move |inner| TransportService::new(layer.layer(inner)));
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
