#![cfg_attr(not(feature = "hyper"), allow(unused_variables, reason = "every known reason needs hyper"))]

use std::{error::Error as StdError, fmt};

use super::{BoxError, ErrorKind, chain::chain};

/// Replaces an error whose causes show text that the server chose, and shows only the reason.
///
/// The server may repeat the key in that text, and its length has no limit.
pub(crate) struct Redacted {
    reason: Reason,
    original: BoxError,
}

enum Reason {
    /// The server chose the debug data of its GOAWAY.
    #[cfg(feature = "hyper")]
    GoAway(h2::Reason),
    /// The server chose the names in its certificate. This one is the client's.
    #[cfg(feature = "rustls")]
    NotValidFor(String),
}

/// Replaces an error that shows text of the server's choice. Returns every other error as it is.
///
/// Replaces the whole chain, because `Debug` of an outer error shows the inner ones.
pub(crate) fn redact(error: impl Into<BoxError>) -> BoxError {
    let error = error.into();
    let reason = chain(&*error).find_map(Reason::of);
    match reason {
        Some(reason) => Box::new(Redacted { reason, original: error }),
        None => error,
    }
}

/// Returns the replaced error of a `Redacted`, and any other error as it is. Must never be shown.
pub(super) fn original<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    match error.downcast_ref::<Redacted>() {
        Some(error) => &*error.original,
        None => error,
    }
}

impl Redacted {
    pub(super) fn kind(&self) -> ErrorKind {
        match self.reason {
            #[cfg(feature = "hyper")]
            Reason::GoAway(_) => ErrorKind::Closed,
            #[cfg(feature = "rustls")]
            Reason::NotValidFor(_) => ErrorKind::Tls,
        }
    }
}

impl Reason {
    fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        #[cfg(feature = "hyper")]
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.reason().filter(|_| error.is_go_away() && error.is_remote()).map(Self::GoAway);
        }
        #[cfg(feature = "rustls")]
        if let Some(rustls::Error::InvalidCertificate(rustls::CertificateError::NotValidForNameContext {
            expected,
            ..
        })) = error.downcast_ref()
        {
            return Some(Self::NotValidFor(expected.to_str().into_owned()));
        }
        None
    }
}

impl fmt::Display for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            #[cfg(feature = "hyper")]
            Reason::GoAway(reason) => {
                write!(f, "http2: connection closed by the server (GOAWAY, {reason:?})")
            }
            #[cfg(feature = "rustls")]
            Reason::NotValidFor(ref name) => {
                write!(f, "invalid peer certificate: not valid for name {name:?}")
            }
        }
    }
}

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for Redacted {}
