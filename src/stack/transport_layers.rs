use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use tower::{ServiceExt, util::BoxCloneSyncService};
use tower_service::Service;

use crate::{
    body::{Body, ReplayBody},
    error::BoxError,
};

type Boxed = BoxCloneSyncService<Request<ReplayBody<Body>>, Response<Body>, BoxError>;

/// The layers between a stack and its transport, innermost first.
#[derive(Clone, Default)]
pub(crate) struct TransportLayers(Vec<Arc<dyn Fn(TransportService) -> TransportService + Send + Sync>>);

/// The service to which [`StackBuilder::with_transport_layer`](super::StackBuilder::with_transport_layer) adds a layer: the transport of a client, or its custom
/// service. Its error is the service's own error, or a [`DeliveryError`](crate::error::DeliveryError) of a layer.
#[derive(Clone)]
pub struct TransportService(Boxed);

impl TransportLayers {
    pub(crate) fn add(
        &mut self,
        layer: impl Fn(TransportService) -> TransportService + Send + Sync + 'static,
    ) {
        self.0.insert(0, Arc::new(layer));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
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
