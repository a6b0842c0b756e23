use std::{fmt, net::IpAddr};

use http::{Uri, uri::Scheme};

use crate::error::InvalidConfig;

/// Where a credential may go: a scheme, a host and a port.
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
    tls: bool,
    host: String,
    port: u16,
    plaintext: bool,
    /// Host and port as nearly all URIs write them, the port only where it is not that of the scheme.
    authority: String,
}

impl Origin {
    /// The origin of an absolute `http` or `https` URL; its path does not count.
    ///
    /// # Errors
    ///
    /// When the URL is not absolute, of another scheme, or carries user info.
    pub fn parse(url: &str) -> Result<Self, InvalidConfig> {
        url.parse::<Uri>()
            .ok()
            .and_then(|uri| Self::of(&uri))
            .ok_or_else(|| InvalidConfig::new("url", redact(url), EXPECTED))
    }

    /// The origin of `uri`; none when it is not an absolute `http` or `https` URI, or carries user info.
    pub fn of(uri: &Uri) -> Option<Self> {
        let (tls, host, port) = parts(uri)?;
        (!uri.authority()?.as_str().contains('@')).then(|| {
            let host = host.to_ascii_lowercase();
            let authority = if port == default_port(tls) { host.clone() } else { format!("{host}:{port}") };
            Self { tls, host, port, plaintext: false, authority }
        })
    }

    /// Lets the credential travel without TLS, where everybody on the way can read it. For a private network
    /// whose encryption is somebody else's; loopback needs no such word.
    pub fn allow_plaintext(mut self) -> Self {
        self.plaintext = true;
        self
    }

    /// Whether `uri` has this scheme, host and port. Allocates nothing.
    pub fn covers(&self, uri: &Uri) -> bool {
        let own = if self.tls { Scheme::HTTPS } else { Scheme::HTTP };
        if uri.authority().is_some_and(|authority| authority.as_str() == self.authority) {
            return uri.scheme() == Some(&own);
        }
        parts(uri).is_some_and(|(tls, host, port)| {
            tls == self.tls && port == self.port && host.eq_ignore_ascii_case(&self.host)
        })
    }

    /// Whether what is sent there can be read on the way by nobody, or was allowed to be.
    pub fn is_safe(&self) -> bool {
        self.tls || self.plaintext || self.is_loopback()
    }

    /// Whether its scheme is `https`.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    fn is_loopback(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

const EXPECTED: &str = "an absolute http or https url without user info, such as https://api.example.com";

/// Scheme, host and port of an absolute URI of ours.
fn parts(uri: &Uri) -> Option<(bool, &str, u16)> {
    let tls = match uri.scheme()? {
        scheme if *scheme == Scheme::HTTPS => true,
        scheme if *scheme == Scheme::HTTP => false,
        _ => return None,
    };
    let host = uri.host().filter(|host| !host.is_empty())?;
    // Not `port_u16`, for which a port that is none is no port.
    let port = uri.authority()?.as_str().rsplit('@').next()?.strip_prefix(host)?;
    let port = match port.strip_prefix(':') {
        None | Some("") => default_port(tls),
        Some(port) => port.parse().ok()?,
    };
    Some((tls, host, port))
}

fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

/// A URL as it may be shown: people put keys in queries and passwords before the host.
pub(crate) fn redact(url: &str) -> String {
    // A password may hold anything, unencoded: with an @ in sight only what follows the last one is sure to be none.
    if let Some((before, after)) = url.rsplit_once('@') {
        let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
        let host = after.split(['/', '?', '#']).next().unwrap_or_default();
        return format!("{scheme}://…@{host}").escape_debug().to_string();
    }
    let shown = url.split(['?', '#']).next().unwrap_or_default();
    shown.escape_debug().to_string()
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> Origin {
        Origin::parse(url).unwrap()
    }

    #[test]
    fn scheme_host_and_port_all_count() {
        let own = origin("https://api.example.com");
        for (uri, covered) in [
            ("https://api.example.com/v1?q", true),
            ("https://API.EXAMPLE.COM:443/", true),
            ("http://api.example.com/", false),
            ("https://api.example.com:8443/", false),
            ("https://api.example.com.evil.test/", false),
            ("https://evil.test/https://api.example.com/", false),
            ("https://api.example.com:70000/", false),
            ("https://api.example.com:/", true),
            ("/v1", false),
        ] {
            assert_eq!(own.covers(&uri.parse().unwrap()), covered, "{uri}");
        }
    }

    #[test]
    fn only_tls_loopback_or_a_word_is_safe() {
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
            assert_eq!(origin(url).is_safe(), safe, "{url}");
            assert_eq!(origin(url).is_tls(), url.starts_with("https"), "{url}");
        }
        assert!(origin("http://10.0.0.1").allow_plaintext().is_safe());
    }

    #[test]
    fn a_bad_url_is_shown_without_what_may_be_secret() {
        for url in [
            "https://me:s3cret/x@host/",
            "https://me:s3cret#x@host/",
            "ftp://host/a?key=s3cret",
            "https://me:s3cret@host/",
            "/v1#s3cret",
            "me:s3cret@host/a",
        ] {
            let error = Origin::parse(url).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
        assert!(Origin::parse("nonsense").unwrap_err().to_string().contains("`nonsense`"));
    }
}
