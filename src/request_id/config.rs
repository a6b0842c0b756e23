use http::HeaderName;
use serde::{Deserialize, Serialize};

use super::RequestIdLayer;
use crate::config::text::{List, Written};

/// What a file sets of a [`RequestIdLayer`].
#[derive(Serialize, Deserialize)]
#[serde(rename = "RequestIdLayer", default, deny_unknown_fields)]
pub(super) struct Fields {
    header: Written<HeaderName>,
    server_headers: List<HeaderName>,
}

impl Default for Fields {
    fn default() -> Self {
        RequestIdLayer::new().into()
    }
}

impl From<RequestIdLayer> for Fields {
    fn from(layer: RequestIdLayer) -> Self {
        let server_headers = layer.settings.naming.server_headers.iter().cloned();
        Self {
            header: Written(layer.settings.header.clone()),
            server_headers: List(server_headers.collect()),
        }
    }
}

impl From<Fields> for RequestIdLayer {
    fn from(fields: Fields) -> Self {
        Self::new().with_header(fields.header.0).with_server_headers(fields.server_headers.0)
    }
}
