use std::{fmt, str::FromStr, sync::Arc};

use http::{
    HeaderName,
    header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE},
};

use crate::config::InvalidConfig;

/// Where a request carries its key. The default is a bearer token.
///
/// | text form | sent |
/// |---|---|
/// | `bearer` | `Authorization: Bearer KEY` |
/// | `header:x-api-key` | `x-api-key: KEY` |
/// | `basic:USER` | `Authorization: Basic`, with the key as the password of `USER` |
/// | `query:api_key` | `?api_key=KEY`, percent-encoded |
///
/// ```
/// use http::HeaderName;
/// use tower_outbound::auth::KeyPlacement;
///
/// let placement = KeyPlacement::header(HeaderName::from_static("x-api-key"))?;
/// assert_eq!(placement, "header:x-api-key".parse()?);
/// assert_eq!(placement.to_string(), "header:x-api-key");
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// # Notes
///
/// Servers and proxies log queries, and `Debug` of a request shows its URI. Prefer a header if the service accepts the
/// key in one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyPlacement(pub(super) Placement);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Placement {
    #[default]
    Bearer,
    Header(HeaderName),
    Basic(Arc<str>),
    Query(Arc<str>),
}

impl KeyPlacement {
    /// Sends the key as a bearer token.
    pub fn bearer() -> Self {
        Self::default()
    }

    /// Sends the key in the header `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if the header frames the request or belongs to the connection: `connection`, `content-length`,
    /// `expect`, `host`, `http2-settings`, `keep-alive`, `proxy-connection`, `te`, `trailer`, `transfer-encoding` or
    /// `upgrade`.
    pub fn header(name: HeaderName) -> Result<Self, InvalidConfig> {
        match frames_request(&name) {
            true => Err(InvalidConfig::new("key header", name.to_string(), NOT_FRAMING)),
            false => Ok(Self(Placement::Header(name))),
        }
    }

    /// Sends the key as the password of `user`. The user name is not a secret.
    ///
    /// # Errors
    ///
    /// Returns an error if the user name contains a control character, or a colon, which would end the user name.
    pub fn basic(user: &str) -> Result<Self, InvalidConfig> {
        if !user.contains(|c: char| c == ':' || c.is_control()) {
            return Ok(Self(Placement::Basic(user.into())));
        }
        // A text after a colon may be a password, so it is not shown.
        let shown = match user.split_once(':') {
            Some((name, _)) => format!("{}:…", name.escape_debug()),
            None => user.escape_debug().to_string(),
        };
        Err(InvalidConfig::new("user", shown, "a name without colons or control characters"))
    }

    /// Sends the key in the query parameter `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is empty.
    pub fn query(name: &str) -> Result<Self, InvalidConfig> {
        match name.is_empty() {
            true => Err(InvalidConfig::new("query parameter", "", "a name")),
            false => Ok(Self(Placement::Query(name.into()))),
        }
    }

    /// Returns the header that carries the key, if it is not `Authorization`.
    pub(crate) fn header_name(&self) -> Option<&HeaderName> {
        match &self.0 {
            Placement::Header(name) => Some(name),
            _ => None,
        }
    }
}

impl FromStr for KeyPlacement {
    type Err = InvalidConfig;

    /// Errors show only part of the text, because the text may contain a key by mistake.
    fn from_str(text: &str) -> Result<Self, InvalidConfig> {
        let is_name = |name: &str| !name.contains(|c: char| "=&#?:".contains(c) || c.is_whitespace());
        match text.split_once(':') {
            None if text == "bearer" => return Ok(Self::bearer()),
            Some(("header", name)) => {
                if let Ok(name) = name.parse() {
                    return Self::header(name);
                }
            }
            Some(("query", name)) if is_name(name) => return Self::query(name),
            Some(("basic", user)) => return Self::basic(user),
            _ => {}
        }
        let shown: String = text.chars().take_while(char::is_ascii_lowercase).take(8).collect();
        let shown = if shown == text { shown } else { format!("{shown}...") };
        Err(InvalidConfig::new("key placement", shown, "bearer, header:NAME, query:NAME or basic:USER"))
    }
}

impl fmt::Display for KeyPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Placement::Bearer => f.write_str("bearer"),
            Placement::Header(name) => write!(f, "header:{name}"),
            Placement::Basic(user) => write!(f, "basic:{user}"),
            Placement::Query(name) => write!(f, "query:{name}"),
        }
    }
}

/// Describes the valid headers. An error contains this text if [`frames_request`] returns `true` for a header.
pub(crate) const NOT_FRAMING: &str =
    "a header other than connection, content-length, host, transfer-encoding and similar headers";

/// Returns whether a header controls the framing of the request or its connection (RFC 9110 §7.6.1 and §10.1.1; RFC
/// 9113 §8.2.2). Clients set these headers themselves, and proxies drop them.
pub(crate) fn frames_request(name: &HeaderName) -> bool {
    [CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE].contains(name)
        || ["http2-settings", "keep-alive", "proxy-connection"].contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_placement_parses_from_its_display_output() {
        for text in ["bearer", "header:x-api-key", "basic:ann", "basic:", "query:api_key"] {
            let placement: KeyPlacement = text.parse().unwrap();
            assert_eq!((placement.to_string().as_str(), placement.clone()), (text, placement));
        }
        assert_eq!(KeyPlacement::default(), KeyPlacement::bearer());
    }

    #[test]
    fn error_of_an_invalid_key_placement_omits_the_key() {
        for (text, shown) in [
            ("header:x-api-key: s3cret", "header..."),
            ("header:x-api-key=s3cret", "header..."),
            ("query:api_key=s3cret", "query..."),
            ("basic:ann:s3cret", "ann:…"),
            ("s3cret", "s..."),
            ("cookie", "cookie"),
            ("bearer:s3cret", "bearer..."),
        ] {
            assert_eq!(text.parse::<KeyPlacement>().unwrap_err().value(), shown, "{text}");
        }
    }

    #[test]
    fn key_placement_rejects_headers_that_frame_a_request() {
        for name in [
            "connection",
            "content-length",
            "expect",
            "host",
            "http2-settings",
            "keep-alive",
            "proxy-connection",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
        ] {
            let error = KeyPlacement::header(HeaderName::from_static(name)).unwrap_err();
            assert_eq!((error.field(), error.value()), ("key header", name));
        }
    }
}
