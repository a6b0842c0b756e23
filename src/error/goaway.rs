use std::{error::Error as StdError, fmt};

use super::{BoxError, chain::chain};

/// Replaces an error whose causes show the debug data of a server's GOAWAY, and shows only the reason.
///
/// The server chooses that data, and may repeat the key in it.
pub(crate) struct GoAway {
    reason: h2::Reason,
    original: BoxError,
}

/// Replaces an error that shows the debug data of a server's GOAWAY. Every other error is returned as it is.
///
/// Replaces the whole chain, because `Debug` of an outer error shows the inner ones.
pub(crate) fn redact(error: impl Into<BoxError>) -> BoxError {
    let error = error.into();
    let goaway = chain(&*error).filter_map(|cause| cause.downcast_ref::<h2::Error>());
    let reason = goaway.filter(|cause| cause.is_go_away() && cause.is_remote()).find_map(h2::Error::reason);
    match reason {
        Some(reason) => Box::new(GoAway { reason, original: error }),
        None => error,
    }
}

/// Returns the replaced error of a `GoAway`, and any other error as it is. Must never be shown.
pub(super) fn original<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    match error.downcast_ref::<GoAway>() {
        Some(error) => &*error.original,
        None => error,
    }
}

impl fmt::Display for GoAway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http2: connection closed by the server (GOAWAY, {:?})", self.reason)
    }
}

impl fmt::Debug for GoAway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for GoAway {}
