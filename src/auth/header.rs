use http::{
    HeaderName, HeaderValue,
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
    request,
};
use zeroize::Zeroizing;

use super::{ApiKey, Authorize, CurrentKey, KeySource, key::sensitive};
use crate::{
    error::{BoxError, InvalidConfig},
    headers::{self, TooManyFields},
};

/// Sends `Authorization: Bearer <key>`, unless the request has an `Authorization`.
#[derive(Debug, Clone)]
pub struct Bearer(HeaderKey);

impl From<ApiKey> for Bearer {
    fn from(key: ApiKey) -> Self {
        Self(HeaderKey::bearer(&key))
    }
}

/// Sends `Authorization: Basic <user and password>`, unless the request has an `Authorization`.
#[derive(Debug, Clone)]
pub struct Basic(HeaderKey);

impl Basic {
    /// Sends this user and this password. The user's name is not a secret.
    ///
    /// # Errors
    ///
    /// Returns an error if the name has a colon, which would end it, or a control character.
    pub fn new(user: &str, password: ApiKey) -> Result<Self, InvalidConfig> {
        check_user(user)?;
        Ok(Self(HeaderKey::basic(user, &password)))
    }
}

/// Sends the key as the value of a header, unless the request has a header of that name.
#[derive(Debug, Clone)]
pub struct HeaderKey {
    name: HeaderName,
    value: HeaderValue,
    /// What the value is made of.
    keys: KeySource,
}

impl HeaderKey {
    /// Sends `key` in the header `name`, such as `x-api-key`.
    ///
    /// # Errors
    ///
    /// Returns an error if the header frames the request or belongs to its connection: `connection`, `content-length`,
    /// `expect`, `host`, `http2-settings`, `keep-alive`, `proxy-connection`, `te`, `trailer`, `transfer-encoding` or
    /// `upgrade`.
    ///
    /// ```
    /// use http::HeaderName;
    /// use tower_outbound::{ApiKey, auth::{AuthLayer, HeaderKey, Origin}};
    ///
    /// let key = HeaderKey::new(HeaderName::from_static("x-api-key"), ApiKey::new("s3cret")?)?;
    /// let layer = AuthLayer::with(key, Origin::parse("https://api.example.com")?)?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn new(name: HeaderName, key: ApiKey) -> Result<Self, InvalidConfig> {
        check_header(&name)?;
        Ok(Self::made(name, &key))
    }

    pub(super) fn made(name: HeaderName, key: &ApiKey) -> Self {
        Self { name, value: key.header_value(), keys: key.clone().into() }
    }

    pub(super) fn bearer(key: &ApiKey) -> Self {
        let value = sensitive(&Zeroizing::new(format!("Bearer {}", key.expose())));
        Self { name: AUTHORIZATION, value, keys: key.clone().into() }
    }

    pub(super) fn basic(user: &str, password: &ApiKey) -> Self {
        let pair = Zeroizing::new(format!("{user}:{}", password.expose()));
        let mut value = Zeroizing::new(String::with_capacity(6 + pair.len().div_ceil(3) * 4));
        value.push_str("Basic ");
        base64(pair.as_bytes(), &mut value);
        Self { name: AUTHORIZATION, value: sensitive(&value), keys: password.clone().into() }
    }

    /// Adds the key unless the request has a header of that name. Returns whether it did.
    pub(super) fn put(&self, head: &mut request::Parts) -> Result<bool, TooManyFields> {
        let before = head.headers.len();
        headers::get_or_insert_with(&mut head.headers, &self.name, || self.value.clone())?;
        Ok(head.headers.len() > before)
    }
}

pub(super) fn check_header(name: &HeaderName) -> Result<(), InvalidConfig> {
    match frames_request(name) {
        true => Err(InvalidConfig::new("key header", name.to_string(), NOT_FRAMING)),
        false => Ok(()),
    }
}

/// What [`frames_request`] rejects, for an error.
pub(crate) const NOT_FRAMING: &str =
    "a header other than connection, content-length, host, transfer-encoding and their kind";

/// Returns whether a header frames a request or belongs to its connection (RFC 9110 §7.6.1 and §10.1.1; RFC 9113
/// §8.2.2). Clients write these themselves, and proxies drop them.
pub(crate) fn frames_request(name: &HeaderName) -> bool {
    [CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE].contains(name)
        || ["http2-settings", "keep-alive", "proxy-connection"].contains(&name.as_str())
}

pub(super) fn check_user(user: &str) -> Result<(), InvalidConfig> {
    if !user.contains(|c: char| c == ':' || c.is_control()) {
        return Ok(());
    }
    // What follows a colon was meant as the password.
    let shown = match user.split_once(':') {
        Some((name, _)) => format!("{}:…", name.escape_debug()),
        None => user.escape_debug().to_string(),
    };
    Err(InvalidConfig::new("user", shown, "a name without colons and control characters"))
}

/// RFC 4648's alphabet, padded.
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

macro_rules! authorize {
    ($($type:ty: $this:ident => $key:expr),*) => {$(
        impl Authorize for $type {
            fn authorize(&self, head: &mut request::Parts) -> Result<(), BoxError> {
                let $this = self;
                $key.put(head)?;
                Ok(())
            }

            fn keys(&self) -> Option<&KeySource> {
                let $this = self;
                Some(&$key.keys)
            }

            fn authorize_with(&self, _: &CurrentKey, head: &mut request::Parts) -> Result<bool, BoxError> {
                let $this = self;
                Ok($key.put(head)?)
            }
        }
    )*};
}

authorize!(Bearer: this => this.0, Basic: this => this.0, HeaderKey: this => this);

#[cfg(test)]
mod tests {
    use super::*;

    fn authorized(authorize: &impl Authorize, request: http::request::Builder) -> request::Parts {
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        authorize.authorize(&mut head).unwrap();
        head
    }

    #[test]
    fn the_bearer_header_is_sensitive_and_the_callers_own_is_kept() {
        let bearer = Bearer::from(ApiKey::new("s3cret").unwrap());
        let head = authorized(&bearer, http::Request::get("https://host/"));
        assert_eq!(head.headers[AUTHORIZATION], "Bearer s3cret");
        assert!(head.headers[AUTHORIZATION].is_sensitive());
        assert!(!format!("{bearer:?} {head:?}").contains("s3cret"));

        let own = http::Request::get("https://host/").header(AUTHORIZATION, "Basic own");
        assert_eq!(authorized(&bearer, own).headers[AUTHORIZATION], "Basic own");
    }

    /// RFC 7617, section 2, and RFC 4648, section 10.
    #[test]
    fn the_published_vectors_hold() {
        let basic = Basic::new("Aladdin", ApiKey::new("opensesame").unwrap()).unwrap();
        let head = authorized(&basic, http::Request::get("https://host/"));
        assert_eq!(head.headers[AUTHORIZATION], "Basic QWxhZGRpbjpvcGVuc2VzYW1l");
        assert!(head.headers[AUTHORIZATION].is_sensitive());
        for (plain, encoded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            let mut out = String::new();
            base64(plain.as_bytes(), &mut out);
            assert_eq!(out, encoded);
        }
        assert_eq!(Basic::new("a:b", ApiKey::new("x").unwrap()).unwrap_err().value(), "a:…");
    }

    #[test]
    fn rejects_a_header_that_frames_the_request_as_the_place_of_a_key() {
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
            let key = ApiKey::new("s3cret").unwrap();
            let error = HeaderKey::new(HeaderName::from_static(name), key).unwrap_err();
            assert_eq!((error.field(), error.value()), ("key header", name));
        }
    }

    #[test]
    fn sends_the_key_in_a_custom_header() {
        let key = || ApiKey::new("s3cret").unwrap();
        let api_key = HeaderName::from_static("x-api-key");
        let header = HeaderKey::new(api_key.clone(), key()).unwrap();
        let head = authorized(&header, http::Request::get("https://host/"));
        assert_eq!(head.headers[&api_key], "s3cret");
        assert!(head.headers[&api_key].is_sensitive() && !format!("{header:?} {head:?}").contains("s3cret"));
        let own = http::Request::get("https://host/").header(&api_key, "own");
        assert_eq!(authorized(&header, own).headers[&api_key], "own");
    }
}
