use std::{fmt, sync::Arc};

use http::{HeaderName, HeaderValue};
use tracing::Level;

use crate::call::Naming;

/// The settings of a layer, which its services share.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) header: HeaderName,
    pub(super) naming: Arc<Naming>,
    pub(super) level: Level,
    pub(super) make: Arc<dyn Fn() -> HeaderValue + Send + Sync>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("header", &self.header)
            .field("server_headers", &self.naming.server_headers)
            .field("service", &self.naming.service)
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}
