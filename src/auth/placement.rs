use std::{fmt, mem, str::FromStr, sync::Arc};

use http::{
    HeaderName, HeaderValue, Method, Request, Uri,
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
    uri::{Parts, PathAndQuery},
};
use percent_encoding::{percent_decode_str, utf8_percent_encode};
use zeroize::Zeroizing;

use super::{
    ApiKey,
    key::{sensitive, unattached},
};
use crate::{config::InvalidConfig, error::Error, headers, secret::Secret, uri::ENCODED};

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
pub struct KeyPlacement(Placement);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Placement {
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

#[cfg(feature = "serde")]
crate::config::text::text! {
    KeyPlacement, "a placement such as header:x-api-key", str::parse, KeyPlacement::to_string;
}

/// A key, formatted as requests send it. Each key is formatted only once.
#[derive(Clone)]
pub(super) struct PlacedKey {
    form: Form,
    /// The key, with the form that requests send.
    pub(super) secret: Secret,
}

#[derive(Clone)]
enum Form {
    Header {
        name: HeaderName,
        value: HeaderValue,
    },
    /// `pair` is `name=key`, percent-encoded.
    Query {
        name: Arc<str>,
        pair: Arc<Zeroizing<String>>,
    },
}

const BASIC: &str = "Basic ";

/// The error if the encoded key makes a URI too long. A key cannot make a valid URI invalid in any other way.
const TOO_LONG: &str = "the url with the key in its query is longer than 65,534 bytes";

impl PlacedKey {
    pub(super) fn new(placement: &KeyPlacement, key: &ApiKey) -> Self {
        let authorization = |value: &str| Form::Header { name: AUTHORIZATION, value: sensitive(value) };
        let mut secret = key.0.clone();
        let form = match &placement.0 {
            Placement::Bearer => authorization(&Zeroizing::new(format!("Bearer {}", key.expose()))),
            Placement::Header(name) => Form::Header { name: name.clone(), value: key.header_value() },
            Placement::Basic(user) => {
                let value = basic(user, key.expose());
                secret = with_basic(&secret, &value);
                authorization(&value)
            }
            Placement::Query(name) => {
                // Percent-encoding replaces one byte by up to three bytes.
                let mut pair = empty(3 * (name.len() + key.expose().len()) + 1);
                pair.extend(utf8_percent_encode(name, ENCODED));
                pair.push('=');
                pair.extend(utf8_percent_encode(key.expose(), ENCODED));
                Form::Query { name: Arc::clone(name), pair: Arc::new(pair) }
            }
        };
        Self { form, secret }
    }

    /// Adds the key to the request, unless the request already has a header or query parameter of the same name.
    /// Returns whether the key was added.
    pub(super) fn put<B>(&self, request: &mut Request<B>) -> Result<bool, Error> {
        match &self.form {
            Form::Header { name, value } => {
                let before = request.headers().len();
                headers::get_or_insert_with(request.headers_mut(), name, || value.clone())?;
                Ok(request.headers().len() > before)
            }
            Form::Query { name, pair } => put_in_query(request, name, pair),
        }
    }
}

fn put_in_query<B>(request: &mut Request<B>, name: &str, pair: &str) -> Result<bool, Error> {
    let query = request.uri().query().unwrap_or_default();
    let name_of = |pair: &str| pair.split('=').next().unwrap_or_default().replace('+', " ");
    if query.split('&').any(|pair| percent_decode_str(&name_of(pair)).eq(name.bytes())) {
        return Ok(false);
    }
    // hyper-util's client would remove the query of a CONNECT request and log it.
    if request.method() == Method::CONNECT {
        return Err(unattached("a CONNECT request has no query that could carry the key"));
    }
    let separator = if query.is_empty() { "" } else { "&" };
    let path = match request.uri().path() {
        "" => "/",
        path => path,
    };
    let path_and_query = format!("{path}?{query}{separator}{pair}");
    let mut parts = Parts::from(mem::take(request.uri_mut()));
    // Drops the error of `http`, because it could show the URI, which now contains the key.
    parts.path_and_query = Some(PathAndQuery::try_from(path_and_query).map_err(|_| unattached(TOO_LONG))?);
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_| unattached(TOO_LONG))?;
    Ok(true)
}

/// Reserves memory for a whole text, because a string that grows leaves copies of the key in freed memory.
fn empty(capacity: usize) -> Zeroizing<String> {
    Zeroizing::new(String::with_capacity(capacity))
}

/// Returns the value of `Authorization` for basic authentication.
pub(crate) fn basic(user: &str, password: &str) -> Zeroizing<String> {
    let pair = Zeroizing::new(format!("{user}:{password}"));
    let mut value = empty(BASIC.len() + pair.len().div_ceil(3) * 4);
    value.push_str(BASIC);
    base64(pair.as_bytes(), &mut value);
    value
}

/// Returns a copy of the secret that is also found in its `basic` form. A server may repeat that form without padding.
pub(crate) fn with_basic(secret: &Secret, basic: &str) -> Secret {
    secret.with_encoded(basic.trim_start_matches(BASIC).trim_end_matches('='))
}

/// Appends `bytes` in padded base64 (RFC 4648). No crate among the default dependencies offers base64.
fn base64(bytes: &[u8], out: &mut String) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for chunk in bytes.chunks(3) {
        let at = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let group = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let index = (group >> (18 - 6 * place)) as usize & 63;
            out.push(if place <= chunk.len() { char::from(ALPHABET[index]) } else { '=' });
        }
    }
}

#[cfg(test)]
mod tests;
