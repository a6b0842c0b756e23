//! The compact form of a request that waits for its permit or for the inner service.

use http::{Method, Request, Uri, Version};

use crate::{call::CallContext, headers::fields};

/// A waiting request. `Packed` has its headers as bytes, and no extensions. A `HeaderMap` of six fields takes 656 bytes
/// on a 64-bit system, and the extensions with a [`CallContext`] take 188 bytes.
pub(super) enum CompactRequest<B> {
    Packed {
        method: Method,
        uri: Uri,
        version: Version,
        fields: Box<[u8]>,
        body: B,
    },
    /// A request with large headers, or with extensions in addition to its [`CallContext`].
    Whole(Box<Request<B>>),
}

impl<B> CompactRequest<B> {
    /// Packs a request. `call` is the context in its extensions.
    pub(super) fn new(request: Request<B>, call: Option<&CallContext>) -> Self {
        let plain = request.extensions().len() == usize::from(call.is_some());
        match plain.then(|| fields::encode(request.headers())).flatten() {
            Some(fields) => {
                let (head, body) = request.into_parts();
                Self::Packed { method: head.method, uri: head.uri, version: head.version, fields, body }
            }
            None => Self::Whole(Box::new(request)),
        }
    }

    /// Returns the whole request, with `call` in its extensions.
    pub(super) fn unpack(self, call: Option<&CallContext>) -> Request<B> {
        match self {
            Self::Packed { method, uri, version, fields, body } => {
                let mut request = Request::new(body);
                (*request.method_mut(), *request.uri_mut(), *request.version_mut()) = (method, uri, version);
                *request.headers_mut() = fields::decode(&fields);
                if let Some(call) = call {
                    request.extensions_mut().insert(call.clone());
                }
                request
            }
            Self::Whole(request) => *request,
        }
    }
}
