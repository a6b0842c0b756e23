//! Finds the kind of a transport failure in the chain of its causes.

mod found;
#[cfg(feature = "hyper")]
mod hyper;

use std::{error::Error as StdError, io};

use tower::load_shed::error::Overloaded;

use self::found::Found;
#[cfg(feature = "hyper")]
pub(crate) use self::hyper::{ConnectError, is_rejected};
use super::{
    ErrorKind,
    chain::{cause, chain},
    redacted::Redacted,
};

/// Returns the kind of a transport failure, or [`ErrorKind::Other`].
///
/// The deepest known error decides. Causes of a request body's error are skipped, because they may be about another
/// connection. `own` recognizes the errors of this crate.
pub(super) fn kind(
    error: &(dyn StdError + 'static),
    own: impl Fn(&(dyn StdError + 'static)) -> Option<ErrorKind>,
) -> ErrorKind {
    let mut found = Found { kind: ErrorKind::Other, connecting: false };
    for error in chain(error) {
        if let Some(kind) = own(error).or_else(|| found.look(error)) {
            return kind;
        }
    }
    found.kind
}

impl Found {
    /// Updates the kind by one error. Returns it if no deeper error can change it.
    fn look(&mut self, error: &(dyn StdError + 'static)) -> Option<ErrorKind> {
        #[cfg(feature = "hyper")]
        if let Some(kind) = self.look_at_hyper(error) {
            return kind;
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            self.kind = self.io(error.kind()).unwrap_or(self.kind);
            return None;
        }
        if let Some(error) = error.downcast_ref::<Redacted>() {
            return Some(error.kind());
        }
        if error.is::<Overloaded>() {
            return Some(ErrorKind::NotReady);
        }
        if error.is::<tokio::time::error::Elapsed>() || error.is::<tower::timeout::error::Elapsed>() {
            return Some(if self.connecting { ErrorKind::ConnectTimeout } else { ErrorKind::AttemptTimeout });
        }
        #[cfg(feature = "rustls")]
        if error.is::<rustls::Error>() {
            return Some(ErrorKind::Tls);
        }
        // The timeouts of reqwest around a connector and of tonic's channel are read by their texts.
        match cause(error).is_none().then(|| error.to_string())?.as_str() {
            "Timeout expired" => Some(ErrorKind::AttemptTimeout),
            text if self.connecting && text.contains("timed out") => Some(ErrorKind::ConnectTimeout),
            _ => None,
        }
    }
}
