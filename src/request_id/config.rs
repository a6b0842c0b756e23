//! Reads and writes `server_headers`, the headers with the server's id, in configuration files.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{call::Naming, config::text::List};

pub(super) fn serialize<S: Serializer>(naming: &Naming, to: S) -> Result<S::Ok, S::Error> {
    List(naming.server_headers.clone()).serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Naming>, D::Error> {
    let List(server_headers) = List::deserialize(from)?;
    Ok(Arc::new(Naming { service: None, server_headers }))
}
