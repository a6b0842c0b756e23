//! What is said of keys: the events of this room, without anything of the key.

use tracing::{debug, info, warn};

use super::KeyError;

const AUTH: &str = "tower_outbound::auth";

/// The file holds another key.
pub(super) fn changed() {
    info!(target: AUTH, "key changed");
}

pub(super) fn refreshing() {
    debug!(target: AUTH, "key refresh begins");
}

pub(super) fn refreshed() {
    info!(target: AUTH, "key refreshed");
}

/// The server has refused the key, and another one is asked for.
pub(super) fn refused() {
    info!(target: AUTH, "key refused by the server");
}

/// `kept` says whether there is a key in use all the same.
pub(super) fn failed(error: &KeyError, kept: bool) {
    warn!(
        target: AUTH,
        kept,
        retry_in_ms = error.retry_in().map(|wait| wait.as_secs_f64() * 1e3),
        "{error}",
    );
}
