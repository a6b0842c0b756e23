//! The head of a request, recorded for the next attempts.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, request};

use crate::call::{CallContext, RequestHead};

/// A copy of a head. Most calls never use it, so it is made to be cheap.
pub(super) enum Head {
    /// Without the maps of headers and extensions, which cost more than the rest together.
    Plain {
        method: Method,
        uri: Uri,
        version: Version,
        fields: Vec<(HeaderName, HeaderValue)>,
    },
    Whole(Box<request::Parts>),
}

impl Head {
    /// Records a head. `shown` states whether a hook will read it.
    pub(super) fn of(head: &request::Parts, shown: bool) -> Self {
        // The call itself is one extension.
        if head.extensions.len() == 1 && !shown {
            let fields = head.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            let (method, uri) = (head.method.clone(), head.uri.clone());
            return Self::Plain { method, uri, version: head.version, fields };
        }
        Self::Whole(Box::new(head.clone()))
    }

    /// Returns the head for a hook, if it was recorded for one.
    pub(super) fn shown(&self) -> Option<RequestHead<'_>> {
        match self {
            Self::Whole(head) => Some(RequestHead::from(&**head)),
            Self::Plain { .. } => None,
        }
    }

    /// Returns the head of the next attempt of this call.
    pub(super) fn again(&self, call: &CallContext) -> request::Parts {
        match self {
            Self::Whole(head) => (**head).clone(),
            Self::Plain { method, uri, version, fields } => {
                let (mut head, ()) = Request::new(()).into_parts();
                (head.method, head.uri, head.version) = (method.clone(), uri.clone(), *version);
                head.headers = HeaderMap::new();
                for (name, value) in fields {
                    // They fitted into the map of the first attempt.
                    let _ = head.headers.try_append(name, value.clone());
                }
                head.extensions.insert(call.clone());
                head
            }
        }
    }
}
