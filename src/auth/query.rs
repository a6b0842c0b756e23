use std::fmt;

use http::{
    Method, Uri, request,
    uri::{Parts, PathAndQuery},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use zeroize::Zeroizing;

use super::{ApiKey, Authorize, CurrentKey, KeySource};
use crate::error::{BoxError, InvalidConfig};

/// A query parameter that holds the key, percent-encoded, unless the request has one of that name already.
///
/// Queries stand in the logs of servers and proxies, and whoever shows a request shows its URI: prefer a header where
/// the service takes one. A CONNECT request, which has no query, is an error.
#[derive(Clone)]
pub struct QueryKey {
    name: String,
    /// `name=key`, encoded.
    pair: Zeroizing<String>,
    /// What the pair is made of.
    keys: KeySource,
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
        Self::check(name)?;
        Ok(Self::made(name, &key))
    }

    pub(super) fn check(name: &str) -> Result<(), InvalidConfig> {
        match name.is_empty() {
            true => Err(InvalidConfig::new("query parameter", "", "a name")),
            false => Ok(()),
        }
    }

    pub(super) fn made(name: &str, key: &ApiKey) -> Self {
        // Three characters for one at the most: with room for all, for a string that grows leaves copies behind.
        let mut pair = Zeroizing::new(String::with_capacity(3 * (name.len() + key.expose().len()) + 1));
        pair.extend(utf8_percent_encode(name, ENCODED));
        pair.push('=');
        pair.extend(utf8_percent_encode(key.expose(), ENCODED));
        Self { name: name.to_owned(), pair, keys: key.clone().into() }
    }
}

impl fmt::Debug for QueryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueryKey({}=redacted)", self.name)
    }
}

impl QueryKey {
    /// Whether it put the key: a request may have brought its own.
    pub(super) fn put(&self, head: &mut request::Parts) -> Result<bool, BoxError> {
        let query = head.uri.query().unwrap_or_default();
        let name = |pair: &str| pair.split('=').next().unwrap_or_default().replace('+', " ");
        let is_own = |pair: &str| percent_decode_str(&name(pair)).eq(self.name.bytes());
        if query.split('&').any(is_own) {
            return Ok(false);
        }
        // It would not arrive: the client strips it off, and hyper-util's logs what it strips.
        if head.method == Method::CONNECT {
            return Err("the key goes into the query, which a connect request has not".into());
        }
        let separator = if query.is_empty() { "" } else { "&" };
        let path = match head.uri.path() {
            "" => "/",
            path => path,
        };
        let path_and_query = format!("{path}?{query}{separator}{}", *self.pair);
        if path_and_query.len() > QueryKey::LONGEST {
            return Err(TooLong.into());
        }
        let mut parts = Parts::from(std::mem::take(&mut head.uri));
        // Neither error tells the URI, which by now holds the key.
        parts.path_and_query = Some(PathAndQuery::try_from(path_and_query).map_err(|_| TooLong)?);
        head.uri = Uri::from_parts(parts).map_err(|_| TooLong)?;
        Ok(true)
    }
}

impl Authorize for QueryKey {
    fn authorize(&self, head: &mut request::Parts) -> Result<(), BoxError> {
        self.put(head).map(|_| ())
    }

    fn keys(&self) -> Option<&KeySource> {
        Some(&self.keys)
    }

    fn authorize_with(&self, _: &CurrentKey, head: &mut request::Parts) -> Result<bool, BoxError> {
        self.put(head)
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
            assert_eq!(authorized(&key, before).uri, after);
        }
        assert_eq!(format!("{key:?}"), "QueryKey(api key=redacted)");
    }

    fn authorized(authorize: &impl Authorize, uri: &str) -> request::Parts {
        let (mut head, ()) = http::Request::get(uri).body(()).unwrap().into_parts();
        authorize.authorize(&mut head).unwrap();
        head
    }
}
