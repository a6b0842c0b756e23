//! One layer in one configuration, with an erased type.

use std::any::type_name;

use bytes::Bytes;
use http::{Request, Response};
use tower::{Layer, Service, util::BoxCloneService};
use tower_outbound::{Body, BoxError};

use super::{
    FOREIGN_URI, URI,
    call::{BoxBodies, BoxedService},
    faulty_service::FaultyService,
    layer_state::LayerState,
};

/// How a layer returns an error from the inner service's `poll_ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadinessErrors {
    /// `poll_ready` of the layer's service returns the inner error unchanged.
    Unchanged,
    /// `poll_ready` of the layer's service returns an `Error` whose source is the inner error.
    FromPollReady,
    /// The call returns an `Error`.
    FromCall,
    /// The call retries, and returns an `Error` after the last attempt.
    AfterAttempts,
}

pub(crate) struct LayerCase {
    pub(crate) label: String,
    pub(crate) uri: &'static str,
    pub(crate) readiness_errors: ReadinessErrors,
    make: Box<dyn Fn() -> (ApplyLayer, LayerState)>,
}

type ApplyLayer = Box<dyn Fn(FaultyService) -> BoxedService>;

impl LayerCase {
    pub(crate) fn new<L, S, R>(configuration: &str, make: impl Fn() -> (L, LayerState) + 'static) -> Self
    where
        L: Layer<FaultyService, Service = S> + 'static,
        S: Service<Request<Body>, Response = Response<R>, Error: Into<BoxError>, Future: Send + 'static>
            + Clone
            + Send
            + 'static,
        R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let path = type_name::<L>().split('<').next().unwrap();
        let layer = path.rsplit("::").next().unwrap();
        let make = move || {
            let (layer, state) = make();
            let apply: ApplyLayer =
                Box::new(move |inner| BoxCloneService::new(BoxBodies(layer.layer(inner))));
            (apply, state)
        };
        Self {
            label: format!("{layer}, {configuration}"),
            uri: URI,
            readiness_errors: ReadinessErrors::FromPollReady,
            make: Box::new(make),
        }
    }

    /// Applies a new instance of the layer to a clone of `inner`. Returns the layer's service and access to the layer's
    /// state.
    pub(crate) fn over(&self, inner: &FaultyService) -> (BoxedService, LayerState) {
        let (apply, state) = (self.make)();
        (apply(inner.clone()), state)
    }

    pub(crate) fn retries(&self) -> bool {
        matches!(self.readiness_errors, ReadinessErrors::AfterAttempts)
    }

    pub(crate) fn with_foreign_uri(self) -> Self {
        Self { uri: FOREIGN_URI, ..self }
    }

    pub(crate) fn with_readiness_errors(self, readiness_errors: ReadinessErrors) -> Self {
        Self { readiness_errors, ..self }
    }
}
