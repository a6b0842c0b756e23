use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::{part::settings, text};
use crate::{client::Transport, error::InvalidConfig};

settings! {
    /// How a ready client reaches its service: [`Transport`].
    pub struct TransportSettings {
        /// The longest that connecting to one address may take. 5 s by default.
        #[serde(with = "text")]
        pub connect_timeout: Option<Duration>,
        /// How long a connection is kept that nothing uses. 90 s by default.
        #[serde(with = "text")]
        pub idle_timeout: Option<Duration>,
        /// The version that is spoken. `negotiated` by default.
        pub http: Option<HttpVersion>,
        /// Whether Mozilla's roots are trusted. True by default.
        pub bundled_roots: Option<bool>,
        /// Whether the roots of the operating system are trusted, too; wants the feature `native-roots`. Not by default.
        pub native_roots: Option<bool>,
        /// A file in PEM form with more certificates to trust, such as a company's own root.
        pub root_certificates: Option<PathBuf>,
    }
}

/// Which HTTP a client speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpVersion {
    /// HTTP/2 where TLS negotiates it, else HTTP/1.1.
    #[default]
    Negotiated,
    /// [`Transport::with_http1_only`].
    Http1,
    /// [`Transport::with_http2_prior_knowledge`].
    Http2,
}

impl TransportSettings {
    /// The transport, with its own defaults for what is not said. Reads the file of certificates.
    ///
    /// # Errors
    ///
    /// When that can't be read, as the setters of [`Transport`], and when a feature is off that a setting wants. Times are
    /// looked at when a client is made.
    pub fn transport(&self) -> Result<Transport, InvalidConfig> {
        let mut transport = Transport::new();
        if let Some(limit) = self.connect_timeout {
            transport = transport.with_connect_timeout(limit);
        }
        if let Some(limit) = self.idle_timeout {
            transport = transport.with_idle_timeout(limit);
        }
        transport = match self.http.unwrap_or_default() {
            HttpVersion::Negotiated => transport,
            HttpVersion::Http1 => transport.with_http1_only(),
            HttpVersion::Http2 => transport.with_http2_prior_knowledge(),
        };
        self.roots(transport)
    }

    #[cfg(feature = "rustls")]
    fn roots(&self, mut transport: Transport) -> Result<Transport, InvalidConfig> {
        // Before what is to be trusted in their place.
        if self.bundled_roots == Some(false) {
            transport = transport.without_roots();
        }
        if self.native_roots == Some(true) {
            transport = native(transport).map_err(|error| error.within("native_roots"))?;
        }
        let Some(path) = &self.root_certificates else { return Ok(transport) };
        let read = std::fs::read(path).map_err(|error| {
            let value = path.display().to_string();
            InvalidConfig::new("root certificates", value, format!("a readable file ({error})"))
        });
        read.and_then(|pem| transport.with_root_certificates(&pem))
            .map_err(|error| error.within("root_certificates"))
    }

    #[cfg(not(feature = "rustls"))]
    fn roots(&self, transport: Transport) -> Result<Transport, InvalidConfig> {
        let expected = "nothing, or the crate's feature `rustls` switched on";
        let given = [
            ("bundled_roots", self.bundled_roots.map(|it| it.to_string())),
            ("native_roots", self.native_roots.filter(|it| *it).map(|it| it.to_string())),
            ("root_certificates", self.root_certificates.as_ref().map(|it| it.display().to_string())),
        ];
        match given.into_iter().find_map(|(path, value)| Some((path, value?))) {
            Some((path, value)) => Err(InvalidConfig::new("roots", value, expected).within(path)),
            None => Ok(transport),
        }
    }
}

#[cfg(feature = "native-roots")]
fn native(transport: Transport) -> Result<Transport, InvalidConfig> {
    transport.with_native_roots()
}

#[cfg(all(feature = "rustls", not(feature = "native-roots")))]
fn native(_: Transport) -> Result<Transport, InvalidConfig> {
    Err(InvalidConfig::new(
        "native roots",
        "true",
        "false, or the crate's feature `native-roots` switched on",
    ))
}
