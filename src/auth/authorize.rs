use std::{fmt, sync::Arc};

use http::{
    HeaderValue, Uri,
    header::AUTHORIZATION,
    request,
    uri::{Parts, PathAndQuery},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::{ApiKey, key::sensitive};
use crate::error::{BoxError, InvalidConfig};

/// Puts a credential on the head of a request. A closure of the same shape is one, too.
///
/// Called once for each attempt, and only for requests to the credential's own origin. An error ends the call
/// before anything is sent; it must not contain the credential.
///
/// ```
/// use tower_outbound::auth::{AuthLayer, Origin};
///
/// let layer = AuthLayer::with(
///     |head: &mut http::request::Parts| {
///         head.headers.insert("x-signature", http::HeaderValue::from_static("made up"));
///         Ok(())
///     },
///     Origin::parse("https://api.example.com")?,
/// )?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
pub trait Authorize: Send + Sync {
    /// Puts the credential on the request.
    ///
    /// # Errors
    ///
    /// When it can't be done; nothing is sent then.
    fn authorize(&self, head: &mut request::Parts) -> Result<(), BoxError>;
}

impl<F> Authorize for F
where
    F: Fn(&mut request::Parts) -> Result<(), BoxError> + Send + Sync,
{
    fn authorize(&self, head: &mut request::Parts) -> Result<(), BoxError> {
        self(head)
    }
}

impl<A: Authorize + ?Sized> Authorize for Arc<A> {
    fn authorize(&self, head: &mut request::Parts) -> Result<(), BoxError> {
        A::authorize(self, head)
    }
}

/// `Authorization: Bearer <key>`, unless the request has an `Authorization` already.
#[derive(Debug, Clone)]
pub struct Bearer(HeaderValue);

impl From<ApiKey> for Bearer {
    fn from(key: ApiKey) -> Self {
        Self(sensitive(&format!("Bearer {}", key.expose())))
    }
}

impl Authorize for Bearer {
    fn authorize(&self, head: &mut request::Parts) -> Result<(), BoxError> {
        head.headers.entry(AUTHORIZATION).or_insert_with(|| self.0.clone());
        Ok(())
    }
}

/// A query parameter that holds the key, percent-encoded, unless the request has one of that name already.
///
/// Queries stand in the logs of servers and proxies: prefer a header where the service takes one.
#[derive(Clone)]
pub struct QueryKey {
    name: String,
    /// `name=key`, encoded.
    pair: String,
}

/// RFC 3986's unreserved characters pass as they are.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl QueryKey {
    /// What the `http` crate can hold of a URI.
    const LONGEST: usize = u16::MAX as usize - 1;

    /// The key goes into the parameter `name`.
    ///
    /// # Errors
    ///
    /// When the name is empty.
    pub fn new(name: &str, key: ApiKey) -> Result<Self, InvalidConfig> {
        if name.is_empty() {
            return Err(InvalidConfig::new("query parameter", "", "a name"));
        }
        let (encoded, key) = (utf8_percent_encode(name, ENCODED), utf8_percent_encode(key.expose(), ENCODED));
        Ok(Self { name: name.to_owned(), pair: format!("{encoded}={key}") })
    }
}

impl fmt::Debug for QueryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueryKey({}=redacted)", self.name)
    }
}

impl Authorize for QueryKey {
    fn authorize(&self, head: &mut request::Parts) -> Result<(), BoxError> {
        let query = head.uri.query().unwrap_or_default();
        let name = |pair: &str| pair.split('=').next().unwrap_or_default().replace('+', " ");
        let is_own = |pair: &str| percent_decode_str(&name(pair)).eq(self.name.bytes());
        if query.split('&').any(is_own) {
            return Ok(());
        }
        let separator = if query.is_empty() { "" } else { "&" };
        let path = match head.uri.path() {
            "" => "/",
            path => path,
        };
        let path_and_query = format!("{path}?{query}{separator}{}", self.pair);
        if path_and_query.len() > QueryKey::LONGEST {
            return Err(TooLong.into());
        }
        let mut parts = Parts::from(std::mem::take(&mut head.uri));
        // Neither error tells the URI, which by now holds the key.
        parts.path_and_query = Some(PathAndQuery::try_from(path_and_query).map_err(|_| TooLong)?);
        head.uri = Uri::from_parts(parts).map_err(|_| TooLong)?;
        Ok(())
    }
}

/// The only way in which a valid URI and an encoded pair fail to make a valid URI.
#[derive(Debug)]
struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the url with the key in its query is longer than 65,534 bytes")
    }
}

impl std::error::Error for TooLong {}

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

    #[test]
    fn the_query_key_is_encoded_appended_and_given_once() {
        let key = QueryKey::new("api key", ApiKey::new("a&b=c/%").unwrap()).unwrap();
        for (before, after) in [
            ("https://host", "https://host/?api%20key=a%26b%3Dc%2F%25"),
            ("https://host/v1?", "https://host/v1?api%20key=a%26b%3Dc%2F%25"),
            ("https://host/v1?q=1", "https://host/v1?q=1&api%20key=a%26b%3Dc%2F%25"),
            ("https://host/v1?api%20key=own", "https://host/v1?api%20key=own"),
            ("https://host/v1?q&api+key", "https://host/v1?q&api+key"),
            ("https://host/v1?%61pi%20key=own", "https://host/v1?%61pi%20key=own"),
        ] {
            assert_eq!(authorized(&key, http::Request::get(before)).uri, after);
        }
        assert_eq!(format!("{key:?}"), "QueryKey(api key=redacted)");
    }
}
