use std::{error::Error as StdError, fmt, net::IpAddr, sync::Arc};

use super::super::BoxError;
use crate::call::ConnectTimes;

/// The error of a connection that could not be opened. Several requests may have waited for the connection. The
/// [`Error`](crate::Error) around it redacts the names in a certificate.
#[derive(Debug, Clone)]
pub(crate) struct ConnectError {
    phase: ConnectPhase,
    /// The addresses of a resolved name.
    addresses: Arc<[IpAddr]>,
    /// The times of the phases that ended before the failure.
    pub(crate) times: ConnectTimes,
    source: Arc<BoxError>,
}

/// The phase in which a connection could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectPhase {
    Resolve,
    Connect,
    #[cfg(feature = "proxy")]
    ConnectProxy,
    #[cfg(feature = "proxy")]
    Proxy,
    #[cfg(feature = "rustls")]
    Tls,
}

impl ConnectError {
    pub(crate) fn new(phase: ConnectPhase, source: impl Into<BoxError>) -> Self {
        Self {
            phase,
            addresses: Arc::default(),
            times: ConnectTimes::default(),
            source: Arc::new(source.into()),
        }
    }

    pub(crate) fn with_addresses(self, addresses: &[IpAddr]) -> Self {
        Self { addresses: addresses.into(), ..self }
    }

    pub(crate) fn with_times(self, times: ConnectTimes) -> Self {
        Self { times, ..self }
    }

    /// Returns whether the connection failed before the proxy was connected to the server.
    pub(super) fn is_of_proxy(&self) -> bool {
        match self.phase {
            #[cfg(feature = "proxy")]
            ConnectPhase::ConnectProxy | ConnectPhase::Proxy => true,
            _ => false,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.phase {
            ConnectPhase::Resolve => "the host name could not be resolved",
            ConnectPhase::Connect => "no connection to the server could be opened",
            #[cfg(feature = "proxy")]
            ConnectPhase::ConnectProxy => "no connection to the proxy could be opened",
            #[cfg(feature = "proxy")]
            ConnectPhase::Proxy => "the proxy did not connect to the server",
            #[cfg(feature = "rustls")]
            ConnectPhase::Tls => "the tls handshake did not succeed",
        })?;
        for (number, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{address}", if number == 0 { " (addresses: " } else { ", " })?;
        }
        f.write_str(if self.addresses.is_empty() { "" } else { ")" })
    }
}

impl StdError for ConnectError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&**self.source)
    }
}

/// The error of a proxy that has rejected the login.
#[cfg(feature = "proxy")]
#[derive(Debug)]
pub(crate) enum ProxyRejection {
    /// The user or the password is wrong or missing.
    Login,
    /// The SOCKS proxy accepts no method of authentication that the client has offered.
    Methods,
}

#[cfg(feature = "proxy")]
impl fmt::Display for ProxyRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Login => "the proxy requires a valid user and password",
            Self::Methods => {
                "the proxy accepts none of the offered methods: it requires a user and a password, or accepts none"
            }
        })
    }
}

#[cfg(feature = "proxy")]
impl StdError for ProxyRejection {}
