use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
#[cfg(feature = "decompression")]
use http_body::Body as _;
use tower::{ServiceExt, util::BoxCloneSyncService};
#[cfg(feature = "decompression")]
use tower_http::decompression::{DecompressionBody, DecompressionLayer};
use tower_layer::Layer;
use tower_service::Service;

use super::builder::StackBuilder;
use crate::{
    body::{Body, ReplayBody},
    config::InvalidConfig,
    error::{BoxError, Error},
};

/// The layers around a service of a client, innermost first.
#[derive(Clone)]
pub(crate) struct ClientLayers<T>(pub(crate) Vec<Arc<dyn Fn(T) -> T + Send + Sync>>);

/// The service to which [`with_transport_layer`](super::StackBuilder::with_transport_layer) adds a layer: the transport
/// of a client, or its custom service. Its error is the service's own error, or a
/// [`DeliveryError`](crate::error::DeliveryError) of a layer. Each call allocates one box, for its future.
pub type TransportService = BoxCloneSyncService<Request<ReplayBody<Body>>, Response<Body>, BoxError>;

/// The service to which [`with_outer_layer`](super::StackBuilder::with_outer_layer) adds a layer: the whole stack of a
/// client. Its error is an [`Error`](crate::Error). Each call allocates one box, for its future.
pub type OuterService = BoxCloneSyncService<Request<Body>, Response<Body>, Error>;

impl<T> ClientLayers<T> {
    pub(crate) fn add(&mut self, layer: impl Fn(T) -> T + Send + Sync + 'static) {
        self.0.insert(0, Arc::new(layer));
    }

    /// Returns an error if there is a layer.
    pub(crate) fn expect_none(
        &self,
        field: &'static str,
        expected: &'static str,
    ) -> Result<(), InvalidConfig> {
        if self.0.is_empty() { Ok(()) } else { Err(InvalidConfig::new(field, format!("{self:?}"), expected)) }
    }

    pub(crate) fn layer(&self, service: T) -> T {
        self.0.iter().fold(service, |service, layer| layer(service))
    }
}

impl<T> fmt::Debug for ClientLayers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} layers", self.0.len())
    }
}

/// Erases the type of a service. `convert` converts its errors.
pub(crate) fn boxed<S, B, R, E>(
    service: S,
    convert: impl Fn(S::Error) -> E + Clone + Send + Sync + 'static,
) -> BoxCloneSyncService<Request<B>, Response<Body>, E>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    B: 'static,
    E: 'static,
{
    let service = service.map_response(|response: Response<R>| response.map(Body::new)).map_err(convert);
    BoxCloneSyncService::new(service)
}

/// Setters of the layers below and above the stack of a client.
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
    pub fn with_transport_layer<L, R>(mut self, layer: L) -> Self
    where
        L: Layer<TransportService> + Send + Sync + 'static,
        L::Service: Service<Request<ReplayBody<Body>>, Response = Response<R>, Error: Into<BoxError>>,
        L::Service: Clone + Send + Sync + 'static,
        <L::Service as Service<Request<ReplayBody<Body>>>>::Future: Send + 'static,
        R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        self.transport_layers.add(move |inner| boxed(layer.layer(inner), Into::into));
        self
    }

    /// Adds a layer above the whole stack of a client, which keeps its methods. The layer sees each call once, before
    /// its id, its deadline and its permits. The first layer is the outermost.
    ///
    /// Use it for a circuit breaker, a cache or redirects: see [`guide::other_layers`](crate::guide::other_layers).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower::limit::GlobalConcurrencyLimitLayer;
    /// use tower_outbound::Client;
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// // At most 100 calls of this client wait or run. The other calls wait before their total timeout starts.
    /// let client = Client::builder("https://api.example.com")?
    ///     .without_credential()
    ///     .with_outer_layer(GlobalConcurrencyLimitLayer::new(100))
    ///     .client()?;
    /// let response = client.get("/v1").timeout(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A call returns an error of the layer as an [`Error`], with the layer's error as its source. A
    /// [`DeliveryError`](crate::error::DeliveryError) sets its kind and its delivery. An [`Error`] of the stack is not
    /// wrapped again, if the layer returns it as its own error or boxed.
    ///
    /// [`layer`](Self::layer) returns an error, because a stack that is used as a layer has no client. Add the layer
    /// above the stack with `ServiceBuilder` instead.
    ///
    /// # Notes
    ///
    /// - A call that the layer ends itself has no report, no request id and no log event. If the [timeout of the
    ///   request](crate::client::RequestBuilder::timeout) ends the call in the layer, its report has no attempts.
    /// - A request that the layer changes must stay below the base URL. Otherwise the call returns an error with
    ///   [`is_invalid_request`](Error::is_invalid_request).
    /// - Each request that the layer sends is a new call, with a new
    ///   [idempotency key](crate::retry::IdempotencyKey). If the layer retries, set the header in the request.
    /// - The layer does not see a retry after a [broken response body](crate::retry#broken-response-bodies), which
    ///   sends the request as the layer changed it. There is no such retry if the layer [wraps the body or sends
    ///   several requests](crate::client::Response#retries).
    /// - Each outer layer costs a call a few allocations. A client without one has no such cost.
    pub fn with_outer_layer<L, R>(mut self, layer: L) -> Self
    where
        L: Layer<OuterService> + Send + Sync + 'static,
        L::Service: Service<Request<Body>, Response = Response<R>, Error: Into<BoxError>>,
        L::Service: Clone + Send + Sync + 'static,
        <L::Service as Service<Request<Body>>>::Future: Send + 'static,
        R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        self.outer_layers.add(move |inner| boxed(layer.layer(inner), Error::from_service));
        self
    }
}

#[cfg(feature = "decompression")]
impl StackBuilder {
    /// Requests compressed responses (`accept-encoding: gzip, br`), and decompresses their bodies. All
    /// limits of bodies count decompressed bytes.
    ///
    /// The layer is a [transport layer](Self::with_transport_layer), tower-http's `DecompressionLayer`.
    pub fn with_decompression(mut self) -> Self {
        self.decompresses = true;
        // The body of the layer does not report that it is empty, so it would count as in flight until the caller reads
        // it.
        let emptied = |response: Response<DecompressionBody<Body>>| {
            let is_empty = response.body().get_ref().is_end_stream();
            response.map(|body| if is_empty { Body::empty() } else { Body::new(body) })
        };
        self.with_transport_layer(
            tower::ServiceBuilder::new().map_response(emptied).layer(DecompressionLayer::new()),
        )
    }
}
