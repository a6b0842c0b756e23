//! Records the head of a request for further attempts.

use http::{
    Method, Request, Uri, Version, request,
    uri::{PathAndQuery, Scheme},
};

use crate::{
    call::{CallContext, RequestHead, copy_head},
    error::Error,
    headers::fields,
    uri::has_path,
};

/// A copy of a request's head. Most calls never use it, so it is cheap to create.
pub(crate) enum RecordedHead {
    /// The method, the URI and the header fields as bytes, of a request without extensions except the `CallContext`.
    Copied { version: Version, bytes: Box<[u8]> },
    /// A large head, a head whose URI does not round-trip through its text, a head with other extensions, or a head
    /// that a classifier or a condition reads.
    Whole(Box<Request<()>>),
}

impl RecordedHead {
    /// The size of the prefix: the lengths of the method and the URI.
    const PREFIX: usize = 3;

    /// Records a head. `whole` is `true` if the request has extensions except the `CallContext`, or if a classifier or
    /// a condition will read the head.
    pub(crate) fn of<B>(request: &Request<B>, whole: bool) -> Self {
        let plain = !whole && round_trips(request.uri());
        let copied = plain.then(|| Self::copied(request)).flatten();
        copied.unwrap_or_else(|| Self::Whole(Box::new(copy_head(request))))
    }

    /// Copies a head without its extensions. Returns `None` if the head is too long, or if its method or the name
    /// of a header has more than 255 bytes.
    fn copied<B>(request: &Request<B>) -> Option<Self> {
        let (method, uri) = texts(request);
        let uri_size: usize = uri.iter().map(|part| part.len()).sum();
        let size = fields::size(request.headers()).saturating_add(Self::PREFIX + method.len() + uri_size);
        let mut bytes = fields::allocate(size)?;
        let [low, high] = u16::try_from(uri_size).ok()?.to_le_bytes();
        bytes.extend_from_slice(&[u8::try_from(method.len()).ok()?, low, high]);
        bytes.extend_from_slice(method);
        uri.iter().for_each(|part| bytes.extend_from_slice(part));
        fields::write(request.headers(), &mut bytes)?;
        Some(Self::Copied { version: request.version(), bytes: bytes.into_boxed_slice() })
    }

    /// Returns the head if it was recorded for a classifier or a condition.
    pub(super) fn shown(&self) -> Option<RequestHead<'_>> {
        match self {
            Self::Whole(head) => Some(RequestHead::of(head)),
            Self::Copied { .. } => None,
        }
    }

    /// Returns the request of the next attempt of this call. Returns an error only if the recorded bytes are invalid,
    /// which would be a bug.
    pub(crate) fn request<B>(&self, call: &CallContext, body: B) -> Result<Request<B>, Error> {
        let (version, bytes) = match self {
            Self::Copied { version, bytes } => (version, bytes),
            Self::Whole(head) => return Ok((**head).clone().map(|()| body)),
        };
        let head = read(bytes).ok_or_else(|| Error::invalid_request("the request cannot be resent"))?;
        let mut request = Request::from_parts(head, body);
        *request.version_mut() = *version;
        request.extensions_mut().insert(call.clone());
        Ok(request)
    }
}

/// Returns `true` only if the text of `uri` parses as the same URI. A URI that was created from parts may have the text
/// of another URI. For example, `https`, `a` and `*` form the text `https://a*`, whose host is `a*`.
fn round_trips(uri: &Uri) -> bool {
    // `as_str` of an empty path is `/`, and `path` of a query alone is `/`.
    let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
    match (uri.scheme(), uri.authority()) {
        (Some(scheme), Some(authority)) => {
            (*scheme == Scheme::HTTPS || *scheme == Scheme::HTTP)
                && !has_path(authority)
                && path.starts_with(['/', '?'])
        }
        (None, None) => path.starts_with('/') && uri.path().starts_with('/'),
        _ => false,
    }
}

/// Returns the head that [`RecordedHead::copied`] has written.
fn read(bytes: &[u8]) -> Option<request::Parts> {
    let (&[method, low, high], rest) = bytes.split_first_chunk::<{ RecordedHead::PREFIX }>()?;
    let (method, rest) = rest.split_at_checked(method.into())?;
    let (uri, rest) = rest.split_at_checked(u16::from_le_bytes([low, high]).into())?;
    let (mut head, ()) = Request::new(()).into_parts();
    (head.method, head.uri) = (Method::from_bytes(method).ok()?, Uri::try_from(uri).ok()?);
    head.headers = fields::decode(rest);
    Some(head)
}

/// Returns the method, and the parts of the text of a URI that [`round_trips`].
fn texts<B>(request: &Request<B>) -> (&[u8], [&[u8]; 3]) {
    let uri = request.uri();
    let scheme = match uri.scheme_str() {
        Some("https") => "https://",
        Some(_) => "http://",
        None => "",
    };
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
    (request.method().as_str().as_bytes(), [scheme, authority, path].map(str::as_bytes))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue, uri::Authority};
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

    /// Generates parsed URIs, and URIs from parts.
    fn uri() -> impl Strategy<Value = Uri> {
        let authority = "([a-z]{1,5}(:[a-z]{1,3})?@)?([A-Za-z0-9.-]{1,12}|\\[::1\\])(:[0-9]{1,4})?";
        let path = "(/[a-zA-Z0-9/%._~!$&'()*+,;=:@-]{0,30})?(\\?[a-z0-9=&/?{}\"|-]{0,20})?";
        let scheme = "https?|HTTPS|[a-z][a-z0-9+.-]{0,8}";
        let absolute = (scheme, authority, path);
        let parsed = prop_oneof![
            8 => absolute.prop_map(|(scheme, authority, path)| format!("{scheme}://{authority}{path}")),
            2 => "/[a-z/]{0,9}(\\?[a-z=&]{0,9})?",
            1 => authority,
            1 => Just("*".to_owned()),
        ];
        let parsed = parsed.prop_map(|text| Uri::try_from(text).ok());
        let paths = prop_oneof![path.boxed(), "\\*|\\?[a-z]?|[a-z.]{0,4}(/[a-z])?".boxed()];
        // `Authority::from_static` does not reject a path, query or fragment after the host.
        let authority = prop_oneof![
            9 => authority.prop_filter_map("not an authority", |text| Authority::try_from(text).ok()),
            1 => prop::sample::select(&["a/v1", "a?q", "a#f", "a/ x"]).prop_map(Authority::from_static),
        ];
        let built = (prop::option::of((scheme, authority)), paths).prop_map(|(origin, path)| {
            let path = PathAndQuery::try_from(path).ok()?;
            match origin {
                Some((scheme, authority)) => {
                    let uri = Uri::builder().scheme(&*scheme).authority(authority);
                    uri.path_and_query(path).build().ok()
                }
                None => Some(path.into()),
            }
        });
        let empty = Just(Uri::builder().build().ok());
        prop_oneof![9 => parsed, 9 => built, 1 => empty].prop_filter_map("not a uri", |uri| uri)
    }

    fn request(method: &str, uri: Uri, headers: HeaderMap) -> Request<()> {
        let mut request = Request::builder().method(method).uri(uri).body(()).unwrap();
        *request.headers_mut() = headers;
        request
    }

    /// Returns the number of bytes of the recorded head, or `None` if it was not recorded as bytes.
    fn size_of(recorded: &RecordedHead) -> Option<usize> {
        match recorded {
            RecordedHead::Copied { bytes, .. } => Some(bytes.len()),
            RecordedHead::Whole(_) => None,
        }
    }

    fn sensitive(headers: &HeaderMap) -> Vec<bool> {
        headers.values().map(HeaderValue::is_sensitive).collect()
    }

    proptest! {
        #[test]
        fn recorded_head_returns_the_same_request(
            method in "GET|POST|[A-Z!#$%&'*+.^_`|~-]{1,20}", uri in uri(), headers in headers(), is_http2: bool,
        ) {
            let mut request = request(&method, uri, headers);
            if is_http2 {
                *request.version_mut() = Version::HTTP_2;
            }
            let call = CallContext::of(request.extensions_mut());
            let recorded = RecordedHead::of(&request, false);
            let fields = request.headers().iter().map(|(name, value)| 3 + name.as_str().len() + value.len());
            let size = 3 + method.len() + texts(&request).1.concat().len() + fields.sum::<usize>();
            let round_trips = round_trips(request.uri());
            prop_assert_eq!(size_of(&recorded), (round_trips && size <= 1024).then_some(size));

            let read = recorded.request(&call, ()).unwrap();
            prop_assert_eq!(read.method(), request.method());
            prop_assert_eq!(read.uri(), request.uri());
            prop_assert_eq!(read.uri().to_string(), request.uri().to_string());
            prop_assert_eq!(read.version(), request.version());
            // Comparing the iterators also compares the order of the values of each name.
            prop_assert!(read.headers().iter().eq(request.headers().iter()));
            prop_assert_eq!(sensitive(read.headers()), sensitive(request.headers()));
            prop_assert_eq!(read.extensions().len(), 1);
        }
    }

    #[test]
    fn recorded_head_copies_heads_of_at_most_1024_bytes() {
        let of = |name: &str, length| {
            let value = HeaderValue::from_bytes(&vec![b'x'; length]).unwrap();
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            let mut request = request("GET", Uri::from_static("/"), HeaderMap::from_iter([(name, value)]));
            let call = CallContext::of(request.extensions_mut());
            let recorded = RecordedHead::of(&request, false);
            assert_eq!(recorded.request(&call, ()).unwrap().headers(), request.headers());
            size_of(&recorded)
        };
        // The prefix, the method and the URI take 7 bytes. The prefix and the name of the field take 4.
        assert_eq!((of("a", 1024 - 11), of("a", 1024 - 10)), (Some(1024), None));
        assert_eq!((of("a", 40_000), of("a", 70_000)), (None, None));
        let long = "a".repeat(256);
        assert_eq!((of(&long[1..], 1).is_some(), of(&long, 1).is_some()), (true, false));
    }
}
