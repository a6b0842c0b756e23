use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use tower::{ServiceExt, util::BoxCloneSyncService};
use tower_service::Service;

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
