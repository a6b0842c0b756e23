//! Records the head of a request for further attempts.

use http::{HeaderMap, Method, Request, Uri, Version, request};

use crate::{
    call::{CallContext, RequestHead},
    headers::fields,
};

/// A copy of a request's head. It is cheap to create, because most calls never use it.
#[expect(
    clippy::large_enum_variant,
    reason = "almost all heads are `Plain`, and a box would be an allocation"
)]
pub(super) enum RecordedHead {
    /// A head with few header fields and no extension except for the `CallContext`.
    Plain {
        method: Method,
        uri: Uri,
        version: Version,
        fields: Fields,
    },
    Whole(Box<Request<()>>),
}

impl RecordedHead {
    /// Records a head. `shown` is `true` if a classifier or a condition will read it.
    pub(super) fn of<B>(request: &Request<B>, shown: bool) -> Self {
        // Every head has one extension, the `CallContext`.
        let plain = request.extensions().len() == 1 && !shown;
        match plain.then(|| Fields::of(request.headers())).flatten() {
            Some(fields) => {
                let (method, uri) = (request.method().clone(), request.uri().clone());
                Self::Plain { method, uri, version: request.version(), fields }
            }
            None => {
                let mut whole = Request::new(());
                *whole.method_mut() = request.method().clone();
                *whole.uri_mut() = request.uri().clone();
                *whole.version_mut() = request.version();
                *whole.headers_mut() = request.headers().clone();
                *whole.extensions_mut() = request.extensions().clone();
                Self::Whole(Box::new(whole))
            }
        }
    }

    /// Returns the head if it was recorded for a classifier or a condition.
    pub(super) fn shown(&self) -> Option<RequestHead<'_>> {
        match self {
            Self::Whole(head) => Some(RequestHead::of(head)),
            Self::Plain { .. } => None,
        }
    }

    /// Returns the head for the next attempt of this call.
    pub(super) fn to_parts(&self, call: &CallContext) -> request::Parts {
        match self {
            Self::Whole(head) => (**head).clone().into_parts().0,
            Self::Plain { method, uri, version, fields } => {
                let (mut head, ()) = Request::new(()).into_parts();
                (head.method, head.uri, head.version) = (method.clone(), uri.clone(), *version);
                head.headers = fields.read();
                head.extensions.insert(call.clone());
                head
            }
        }
    }
}

/// Header fields in at most one allocation. A `HeaderMap` needs two allocations, and another one for each shared value.
pub(super) enum Fields {
    /// The first bytes contain the fields.
    Short(u8, [u8; Fields::SHORT]),
    Long(Box<[u8]>),
}

impl Fields {
    /// The maximum number of bytes that need no allocation. The headers of most requests to a JSON API are shorter.
    const SHORT: usize = 158;

    /// Copies the fields. Returns `None` if they are too large.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let mut short = [0; Self::SHORT];
        match fields::write(headers, &mut short) {
            Some(length) => Some(Self::Short(u8::try_from(length).ok()?, short)),
            None => fields::encode(headers).map(Self::Long),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(length, bytes) => bytes.get(..usize::from(*length)).unwrap_or_default(),
            Self::Long(bytes) => bytes,
        }
    }

    fn read(&self) -> HeaderMap {
        fields::decode(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = HeaderMap> {
        let byte = prop_oneof![Just(b'\t'), 32..=126_u8, 128..=255_u8];
        let value = (prop::collection::vec(byte, 0..40), any::<bool>());
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
        fn recorded_head_returns_the_same_header_fields(headers in headers()) {
            let size: usize = headers.iter().map(|(name, value)| 5 + name.as_str().len() + value.len()).sum();
            let fields = Fields::of(&headers);
            prop_assert_eq!(fields.is_some(), size <= 1024);
            let Some(fields) = fields else { return Ok(()) };
            prop_assert_eq!(fields.bytes().len(), size);
            let read = fields.read();
            // Comparing the iterators also compares the order of the values of each name.
            prop_assert!(read.iter().eq(headers.iter()));
            let sensitive = |headers: &HeaderMap| headers.values().map(HeaderValue::is_sensitive).collect::<Vec<_>>();
            prop_assert_eq!(sensitive(&read), sensitive(&headers));
        }
    }

    #[test]
    fn recorded_head_copies_header_fields_of_at_most_1024_bytes() {
        let of = |length| {
            let value = HeaderValue::from_bytes(&vec![b'x'; length]).unwrap();
            Fields::of(&HeaderMap::from_iter([(HeaderName::from_static("a"), value)])).is_some()
        };
        assert!(of(1024 - 6) && !of(1024 - 5) && !of(usize::from(u16::MAX) + 1));
    }
}
