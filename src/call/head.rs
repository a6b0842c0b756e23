use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, header::CONTENT_LENGTH,
};

use super::CallContext;

/// The parts of a request without its body. Closures and traits of this crate receive them as an argument.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The URI.
    pub uri: &'a Uri,
    /// The header fields. They may contain a credential.
    pub headers: &'a HeaderMap,
    /// The extensions that the caller and outer layers have set.
    pub extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    /// Borrows the head of a request.
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// Returns the size of the body in bytes, if it is known: `content-length`, otherwise the exact size that the body
    /// reports to a [`retry`](crate::retry) layer outside this layer.
    ///
    /// A body in memory has an exact size, such as text, JSON or bytes. A stream may have none. Returns `None` for a
    /// body of 4 GiB or more without `content-length`.
    pub fn body_size(&self) -> Option<u64> {
        match self.headers.get(CONTENT_LENGTH) {
            Some(length) => length.to_str().ok()?.parse().ok(),
            None => self.extensions.get::<CallContext>()?.body_size(),
        }
    }
}

/// The maximum size of encoded header fields, in bytes.
const MAX_SIZE: usize = 1024;
/// The size of the prefix of each field. Its first byte is the length of the name. The other bytes are twice the length
/// of the value, plus 1 if the value is sensitive.
const PREFIX: usize = 3;

/// A copy of a request's head without its [`CallContext`], for a resend or for the time in the limiter's queue.
pub(crate) struct RecordedHead {
    method: Method,
    uri: Uri,
    version: Version,
    fields: Fields,
    extensions: Extensions,
}

enum Fields {
    /// The fields as bytes. A `HeaderMap` of six fields takes 656 bytes on a 64-bit system.
    Encoded(Box<[u8]>),
    /// Fields that [`encode`] does not accept. Large fields are cheaper to clone than to encode and to parse again.
    Map(Box<HeaderMap>),
}

impl RecordedHead {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let (headers, given) = (request.headers(), request.extensions());
        // Most requests have no extension except the `CallContext`, so the map is not copied for them.
        let has_others = given.len() > usize::from(given.get::<CallContext>().is_some());
        let mut extensions = if has_others { given.clone() } else { Extensions::new() };
        extensions.remove::<CallContext>();
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            fields: encode(headers).map_or_else(|| Fields::Map(Box::new(headers.clone())), Fields::Encoded),
            extensions,
        }
    }

    /// Returns the request with this head and `call` in its extensions.
    pub(crate) fn request<B>(&self, call: Option<&CallContext>, body: B) -> Request<B> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.version_mut() = self.version;
        *request.headers_mut() = match &self.fields {
            Fields::Encoded(bytes) => decode(bytes),
            Fields::Map(headers) => (**headers).clone(),
        };
        *request.extensions_mut() = self.extensions.clone();
        call.and_then(|call| request.extensions_mut().insert(call.clone()));
        request
    }
}

/// Copies the fields. Returns `None` if they are larger than [`MAX_SIZE`], or a name has more than 255 bytes.
fn encode(headers: &HeaderMap) -> Option<Box<[u8]>> {
    let size = |(name, value): (&HeaderName, &HeaderValue)| PREFIX + name.as_str().len() + value.len();
    let size = headers.iter().map(size).fold(0, usize::saturating_add);
    let mut bytes = (size <= MAX_SIZE).then(|| Vec::with_capacity(size))?;
    for (name, value) in headers {
        let name = name.as_str().as_bytes();
        let length = u16::try_from(value.len()).ok()?.checked_mul(2)?;
        let [low, high] = (length + u16::from(value.is_sensitive())).to_le_bytes();
        bytes.extend_from_slice(&[u8::try_from(name.len()).ok()?, low, high]);
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value.as_bytes());
    }
    Some(bytes.into_boxed_slice())
}

/// Returns the fields that [`encode`] has copied.
fn decode(mut bytes: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    while let Some((name, value, rest)) = field(bytes) {
        // The fields fit into the map, because they fitted into the map from which they were copied.
        let _ = headers.try_append(name, value);
        bytes = rest;
    }
    headers
}

/// Returns the first field and the remaining bytes.
fn field(bytes: &[u8]) -> Option<(HeaderName, HeaderValue, &[u8])> {
    let (&[name, low, high], rest) = bytes.split_first_chunk::<PREFIX>()?;
    let length = u16::from_le_bytes([low, high]);
    let (name, rest) = rest.split_at_checked(name.into())?;
    let (value, rest) = rest.split_at_checked(usize::from(length / 2))?;
    let mut value = HeaderValue::from_bytes(value).ok()?;
    value.set_sensitive(length % 2 != 0);
    // Unlike `from_bytes`, `from_lowercase` accepts every name that a `HeaderMap` can contain.
    Some((HeaderName::from_lowercase(name).ok()?, value, rest))
}

#[cfg(test)]
mod tests {
    use http::uri::{Authority, PathAndQuery};
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = HeaderMap> {
        let byte = prop_oneof![Just(b'\t'), 32..=126_u8, 128..=255_u8];
        let value = (prop::collection::vec(byte, 0..200), any::<bool>());
        let field = ("[a-z-]{1,12}|accept|Content-Type|authorization", value);
        prop::collection::vec(field, 0..12).prop_map(|fields| {
            let mut headers = HeaderMap::new();
            for (name, (value, sensitive)) in fields {
                let mut value = HeaderValue::from_bytes(&value).unwrap();
                value.set_sensitive(sensitive);
                headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value);
            }
            headers
        })
    }

    proptest! {
        #[test]
        fn recorded_head_returns_the_same_request(
            method in "GET|POST|[A-Z!#$%&'*+.^_`|~-]{1,20}", headers in headers(), is_http2: bool, has_other: bool,
        ) {
            let mut request = Request::builder().method(&*method).uri("https://a/b?c").body(()).unwrap();
            *request.headers_mut() = headers;
            if is_http2 {
                *request.version_mut() = Version::HTTP_2;
            }
            let call = CallContext::of(request.extensions_mut());
            if has_other {
                request.extensions_mut().insert(7_u8);
            }
            let recorded = RecordedHead::of(&request);
            prop_assert_eq!(recorded.extensions.len(), usize::from(has_other), "the call is not recorded");
            let read = recorded.request(Some(&call), ());
            prop_assert_eq!(read.method(), request.method());
            prop_assert_eq!(read.uri(), request.uri());
            prop_assert_eq!(read.version(), request.version());
            // Comparing the iterators also compares the order of the values of each name.
            prop_assert!(read.headers().iter().eq(request.headers().iter()));
            let sensitive = |headers: &HeaderMap| headers.values().map(HeaderValue::is_sensitive).collect::<Vec<_>>();
            prop_assert_eq!(sensitive(read.headers()), sensitive(request.headers()));
            prop_assert_eq!(read.extensions().get::<u8>().is_some(), has_other);
            prop_assert!(call.is_reported_by(&read.extensions().get::<CallContext>().unwrap().report()));
        }
    }

    /// The text of some of these URIs would parse as the URI of another host.
    #[test]
    fn recorded_head_keeps_a_uri_that_was_created_from_parts() {
        let built = |scheme: &str, authority, path: &'static str| {
            let path = PathAndQuery::from_static(path);
            Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build().unwrap()
        };
        for uri in [
            Uri::from_static("*"),
            built("https", Authority::from_static("a"), "*"),
            built("https", Authority::from_static("a/v1"), "/"),
            built("https", Authority::from_static("a?q"), "/"),
            built("https", Authority::from_static("a#f"), "/"),
            built("ftp", Authority::from_static("a"), "?q"),
        ] {
            let request = Request::builder().uri(uri.clone()).body(()).unwrap();
            let read = RecordedHead::of(&request).request(None, ());
            let parts = |uri: &Uri| uri.clone().into_parts();
            assert_eq!(parts(read.uri()).scheme, parts(&uri).scheme);
            assert_eq!(parts(read.uri()).authority, parts(&uri).authority);
            assert_eq!(parts(read.uri()).path_and_query, parts(&uri).path_and_query);
        }
    }

    #[test]
    fn header_fields_of_at_most_1024_bytes_are_encoded() {
        let is_encoded = |name: &str, length| {
            let value = HeaderValue::from_bytes(&vec![b'x'; length]).unwrap();
            let headers = HeaderMap::from_iter([(HeaderName::from_bytes(name.as_bytes()).unwrap(), value)]);
            let mut request = Request::new(());
            *request.headers_mut() = headers.clone();
            let recorded = RecordedHead::of(&request);
            assert_eq!(recorded.request(None, ()).headers(), &headers);
            matches!(recorded.fields, Fields::Encoded(_))
        };
        // The prefix and the name take 4 bytes.
        assert!(is_encoded("a", 1020) && !is_encoded("a", 1021) && !is_encoded("a", 70_000));
        let long = "a".repeat(256);
        assert!(is_encoded(&long[1..], 1) && !is_encoded(&long, 1));
    }
}
