use std::time::Duration;

use super::connect::{Transport, Version};
use crate::error::InvalidConfig;

/// The configuration of a [`Transport`], for files: see [`Transport::from_config`]. Code uses the transport's setters.
///
/// | field | default |
/// |---|---|
/// | `connect_timeout` | `5s`, for one address |
/// | `idle_timeout` | `90s`, hyper-util's own default |
/// | `http` | `negotiated`: HTTP/2 if TLS negotiates it, otherwise HTTP/1.1. Or `http1`, `http2` |
/// | `bundled_roots` | `true`: trusts Mozilla's roots |
/// | `native_roots` | `false`: `true` also trusts the roots of the operating system |
/// | `root_certificates` | none: the path of a PEM file with further roots |
///
/// `bundled_roots` and `root_certificates` exist with the feature `rustls`, and `native_roots` with `native-roots`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct TransportConfig {
    #[cfg_attr(feature = "serde", serde(with = "crate::config::text::positive"))]
    connect_timeout: Duration,
    #[cfg_attr(feature = "serde", serde(with = "crate::config::text::positive"))]
    idle_timeout: Duration,
    http: Version,
    #[cfg(feature = "rustls")]
    bundled_roots: bool,
    #[cfg(feature = "native-roots")]
    native_roots: bool,
    #[cfg(feature = "rustls")]
    root_certificates: Option<std::path::PathBuf>,
}

impl Default for TransportConfig {
    fn default() -> Self {
        let transport = Transport::new();
        Self {
            connect_timeout: transport.connect_timeout,
            idle_timeout: transport.idle_timeout,
            http: transport.version,
            #[cfg(feature = "rustls")]
            bundled_roots: true,
            #[cfg(feature = "native-roots")]
            native_roots: false,
            #[cfg(feature = "rustls")]
            root_certificates: None,
        }
    }
}

impl Transport {
    /// Creates a transport from its configuration. Reads the file of root certificates.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no native roots, or if the file cannot be read or has no valid certificate.
    #[cfg_attr(not(feature = "rustls"), expect(unused_mut, clippy::unnecessary_wraps, reason = "only TLS can fail"))]
    pub fn from_config(config: &TransportConfig) -> Result<Self, InvalidConfig> {
        let mut transport = Self::new();
        transport.connect_timeout = config.connect_timeout;
        transport.idle_timeout = config.idle_timeout;
        transport.version = config.http;
        #[cfg(feature = "rustls")]
        if !config.bundled_roots {
            transport = transport.without_roots();
        }
        #[cfg(feature = "native-roots")]
        if config.native_roots {
            transport = transport.with_native_roots().map_err(|error| error.within("native_roots"))?;
        }
        #[cfg(feature = "rustls")]
        if let Some(path) = &config.root_certificates {
            let unreadable = |error| {
                let expected = format!("a readable file ({error})");
                InvalidConfig::new("root certificates", path.display().to_string(), expected)
            };
            let added =
                std::fs::read(path).map_err(unreadable).and_then(|pem| transport.with_root_certificates(&pem));
            transport = added.map_err(|error| error.within("root_certificates"))?;
        }
        Ok(transport)
    }
}
