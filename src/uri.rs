//! Checks of hosts and ports, the redaction of URLs, and the characters that are percent-encoded in a URL.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{
    Uri,
    uri::{Authority, Scheme},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};

/// The characters that are percent-encoded: all except the unreserved characters of RFC 3986.
pub(crate) const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns whether the text of `authority` contains a path, a query or a fragment. `Authority::from_static` does not
/// reject them, and the text of a URI with such an authority parses as another URI.
pub(crate) fn has_path(authority: &Authority) -> bool {
    authority.as_str().bytes().any(|byte| matches!(byte, b'/' | b'?' | b'#'))
}

/// Returns whether a host is `localhost` or a loopback address.
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

pub(crate) fn default_port(scheme: &Scheme) -> u16 {
    if *scheme == Scheme::HTTPS { 443 } else { 80 }
}

/// Returns the port of the URI, or the default port of its scheme. Returns `None` if the port is invalid. `Uri::port`
/// does not distinguish an invalid port from a missing one.
pub(crate) fn port(uri: &Uri) -> Option<u16> {
    let rest = uri.authority()?.as_str().rsplit('@').next()?.strip_prefix(uri.host()?)?;
    match rest.strip_prefix(':') {
        None | Some("") => uri.scheme().map(default_port),
        // `str::parse` would accept a plus sign.
        Some(port) if !port.starts_with('+') => port.parse().ok().filter(|port| *port > 0),
        Some(_) => None,
    }
}

/// Returns whether a host is an IP address or a name of letters, digits, `-` and `_`.
pub(crate) fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[') {
        return address.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        matches!(label.len(), 1..=63) && label.bytes().all(is_part)
    };
    // Resolvers parse a host such as `127.1` as an IPv4 address, and no top-level domain is a number. A host whose last
    // label is a number is therefore valid only if it is an IPv4 address.
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_name = !last.bytes().all(|byte| byte.is_ascii_digit());
    name.len() <= 253 && name.split('.').all(is_label) && (is_name || host.parse::<Ipv4Addr>().is_ok())
}

/// Redacts a text, which should be a URL, for an error message. The result is `https://host:port/…` or `https://…`.
///
/// Keeps host and port only if the text is a valid URL and cannot contain user info. User info, queries and some paths
/// contain passwords or keys, and a malformed URL may have user info anywhere.
pub(crate) fn quoted(url: &str) -> String {
    const SCHEMES: [&str; 8] = ["http", "https", "ws", "wss", "ftp", "socks4", "socks5", "socks5h"];
    if url.is_empty() {
        return String::new();
    }
    let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    let Some(scheme) = scheme.filter(|scheme| SCHEMES.contains(&scheme.as_str())) else {
        return "…".to_owned();
    };
    let is_clear = url.is_ascii() && !url.contains(['@', '%']);
    let uri = url.parse::<Uri>().ok().filter(|uri| is_clear && port(uri).is_some());
    match uri.as_ref().and_then(Uri::authority).filter(|authority| is_host(authority.host())) {
        Some(authority) => {
            let is_all = url.len() == scheme.len() + "://".len() + authority.as_str().len();
            format!("{scheme}://{authority}{}", if is_all { "" } else { "/…" })
        }
        None => format!("{scheme}://…"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_quotes_scheme_host_and_port_of_a_url_without_user_info() {
        for (url, shown) in [
            ("https://api.example.com:8443", "https://api.example.com:8443"),
            ("HTTP://[::1]/v1", "http://[::1]/…"),
            ("wss://api.example.com", "wss://api.example.com"),
            ("ftp://host/a?key=s3cret", "ftp://host/…"),
            ("socks5://host:1080", "socks5://host:1080"),
            ("https://host?key=s3cret", "https://host/…"),
            ("https://host#s3cret", "https://host/…"),
            ("", ""),
        ] {
            assert_eq!(quoted(url), shown, "{url}");
        }
    }

    #[test]
    fn error_quotes_only_the_scheme_of_an_invalid_url_or_a_url_with_user_info() {
        for url in [
            "https://me:s3cret@host/",
            "https://me:s3cret/x@host/",
            "https://me:s3cret#x@host/",
            "https://me:1234/x@host/",
            "https://me:s3cret",
            "https://me:s3cret%40host/",
            "https://me:1234/s3cret%40host/",
            "https://me:s3cret\u{ff20}host/",
            "https:///me:s3cret",
            "https://me:pw@x@s3cret",
            "https://s3cret;host",
            "https://me s3cret",
        ] {
            assert_eq!(quoted(url), "https://…", "{url}");
        }
        for text in
            ["s3cret", "me:s3cret@host/a", "/v1#s3cret", "s3cret://host", "https:me:s3cret", "//s3cret"]
        {
            assert_eq!(quoted(text), "…", "{text}");
        }
    }
}
