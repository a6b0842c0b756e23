use std::fmt;

use http::{Uri, uri::Scheme};

use super::key::unattached;
use crate::{
    config::InvalidConfig,
    error::Error,
    uri::{default_port, has_path, is_host, is_loopback, port, quoted},
};

/// The servers to which a credential may be sent, identified by scheme, host and port.
///
/// ```
/// use tower_outbound::auth::Origin;
///
/// let origin = Origin::parse("https://api.example.com/v1")?;
/// assert!(origin.covers(&"https://API.example.com:443/other".parse()?));
/// assert!(!origin.covers(&"https://example.com/".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    scheme: Scheme,
    host: String,
    port: u16,
    /// The host, with the port unless it is the default port of the scheme.
    authority: String,
    plaintext: bool,
}

impl Origin {
    /// Parses an absolute `http` or `https` URL. Its path is ignored.
    ///
    /// # Errors
    ///
    /// Returns an error if `url` is not an absolute `http` or `https` URL, or contains user info. Also returns an error
    /// if its host is neither a name nor an IP address, or its port is not from 1 to 65535.
    ///
    /// The error quotes the scheme, host and port of a URL without user info. For any other text, the error quotes only
    /// the scheme.
    pub fn parse(url: &str) -> Result<Self, InvalidConfig> {
        let invalid = |expected| InvalidConfig::new("url", quoted(url), expected);
        Self::checked(&url.parse().map_err(|_| invalid(EXPECTED))?).map_err(invalid)
    }

    /// Returns the origin of `uri`. If `uri` is invalid, the error describes a valid URI.
    pub(crate) fn checked(uri: &Uri) -> Result<Self, &'static str> {
        let is_http = |scheme: &&Scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme);
        let scheme = uri.scheme().filter(is_http).ok_or(EXPECTED)?.clone();
        let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        let host = uri.host().filter(|_| !authority.contains('@')).ok_or(EXPECTED)?;
        if !is_host(host) {
            return Err("a host that is a name or an ip address");
        }
        let port = port(uri).ok_or("a port from 1 to 65535")?;
        let host = host.to_ascii_lowercase();
        let is_default = port == default_port(&scheme);
        let authority = if is_default { host.clone() } else { format!("{host}:{port}") };
        Ok(Self { scheme, host, port, authority, plaintext: false })
    }

    /// Allows the credential to be sent without TLS. Every host on the network path can then read it.
    ///
    /// Use this for a private network that is encrypted by other means. Loopback addresses are always allowed.
    pub fn with_plaintext(mut self) -> Self {
        self.plaintext = true;
        self
    }

    pub(crate) fn is_plaintext(&self) -> bool {
        self.plaintext
    }

    /// Returns whether `uri` has the same scheme, host and port as this origin. Returns `false` if the text of its
    /// authority contains a path, a query or a fragment. Does not allocate.
    pub fn covers(&self, uri: &Uri) -> bool {
        if uri.scheme() != Some(&self.scheme) {
            return false;
        }
        let Some(authority) = uri.authority() else { return false };
        // Most authorities are equal as text. They are not parsed, because parsing takes half of the layer's time.
        if authority.as_str() == self.authority {
            return true;
        }
        // A client that parses the URI's text again may connect to another host.
        if has_path(authority) {
            return false;
        }
        let host = uri.host().is_some_and(|host| host.eq_ignore_ascii_case(&self.host));
        host && port(uri) == Some(self.port)
    }

    /// Returns whether the scheme is `https`.
    pub fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// Returns the origin if a credential may be sent there: the origin uses TLS, is on loopback, or [allows
    /// plaintext](Self::with_plaintext). Otherwise returns an error.
    pub(crate) fn for_credential(self) -> Result<Self, InvalidConfig> {
        if self.is_tls() || self.plaintext || is_loopback(&self.host) {
            return Ok(self);
        }
        let expected = "https, a loopback host or Origin::with_plaintext, because a credential is sent to it";
        let in_file = "https or a loopback host, because a credential is sent to it";
        Err(InvalidConfig::new("origin", self.to_string(), expected).expecting_in_file(in_file))
    }

    /// Returns whether one of the origins covers `uri`. Returns an error if `uri` has no origin and `origins` is not
    /// empty.
    pub(super) fn any_covers(origins: &[Self], uri: &Uri) -> Result<bool, Error> {
        if uri.authority().is_none() && !origins.is_empty() {
            let why = "the request's uri names no origin, so the layer cannot decide whether to send the credential";
            return Err(unattached(why));
        }
        Ok(origins.iter().any(|origin| origin.covers(uri)))
    }
}

const EXPECTED: &str = "an absolute http or https url without user info, such as https://api.example.com";

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.scheme, self.host, self.port)
    }
}

#[cfg(feature = "serde")]
crate::config::text::text! {
    Origin, "an origin such as https://api.example.com", Origin::parse, Origin::to_string;
}

#[cfg(test)]
mod tests {
    use http::uri::Authority;

    use super::*;

    fn origin(url: &str) -> Origin {
        Origin::parse(url).unwrap()
    }

    #[test]
    fn origins_are_compared_by_scheme_host_and_port() {
        let own = origin("https://api.example.com");
        for (uri, covered) in [
            ("https://api.example.com/v1?q", true),
            ("https://API.EXAMPLE.COM:443/", true),
            ("http://api.example.com/", false),
            ("https://api.example.com:8443/", false),
            ("https://api.example.com.evil.test/", false),
            ("https://evil.test/https://api.example.com/", false),
            ("https://api.example.com:70000/", false),
            ("https://api.example.com:+443/", false),
            ("https://api.example.com:/", true),
            ("/v1", false),
        ] {
            assert_eq!(own.covers(&uri.parse().unwrap()), covered, "{uri}");
        }
    }

    #[test]
    fn origin_does_not_cover_an_authority_with_a_path_query_or_fragment() {
        let own = origin("https://api.example.com");
        for authority in
            ["evil.test/@api.example.com", "evil.test?@api.example.com", "evil.test#@api.example.com"]
        {
            let authority = Authority::from_static(authority);
            assert_eq!(authority.host(), "api.example.com");
            let uri =
                Uri::builder().scheme("https").authority(authority).path_and_query("/").build().unwrap();
            assert!(!own.covers(&uri), "{uri}");
        }
    }

    #[test]
    fn credential_needs_tls_or_loopback_or_allowed_plaintext() {
        for (url, safe) in [
            ("https://api.example.com", true),
            ("http://127.0.0.1:8080", true),
            ("http://127.9.9.9", true),
            ("http://[::1]:80", true),
            ("http://localhost", true),
            ("http://api.example.com", false),
            ("http://10.0.0.1", false),
            ("http://127.0.0.1.evil.test", false),
            ("http://localhost.evil.test", false),
        ] {
            assert_eq!(origin(url).for_credential().is_ok(), safe, "{url}");
            assert_eq!(origin(url).is_tls(), url.starts_with("https"), "{url}");
        }
        assert!(origin("http://10.0.0.1").with_plaintext().for_credential().is_ok());
    }

    #[test]
    fn origin_rejects_an_invalid_host_or_port() {
        for host in ["*", "a*b", "a..b", ".a", "-", "a_b.example.com", "example.com."] {
            let valid = ["-", "a_b.example.com", "example.com."].contains(&host);
            assert_eq!(Origin::parse(&format!("http://{host}")).is_ok(), valid, "{host}");
        }
        for host in ["1.2.3", "127.1", "999.1.1.1", "host.7", "[::1", "[1.2.3.4]", &"a".repeat(64)] {
            assert!(Origin::parse(&format!("http://{host}")).is_err(), "{host}");
        }
        for port in ["0", "65536", "-1", "+80", "port"] {
            let error = Origin::parse(&format!("http://host:{port}")).unwrap_err().to_string();
            assert!(error.ends_with("expected a port from 1 to 65535"), "{port}: {error}");
        }
    }
}
