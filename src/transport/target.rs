use http::{
    HeaderValue, Method, Request, Uri,
    header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING},
    uri::{Authority, Parts, PathAndQuery, Scheme},
};
use http_body::Body;

use crate::{error::Error, headers};

/// The origin of requests, and the form of their heads.
pub(super) struct Target {
    pub(super) scheme: Scheme,
    pub(super) authority: Authority,
    host: HeaderValue,
    /// The authorization for the proxy that forwards plain requests, if there is such a proxy.
    forward: Option<Option<HeaderValue>>,
}

impl Target {
    pub(super) fn new(
        scheme: &Scheme,
        authority: &Authority,
        forward: Option<Option<HeaderValue>>,
    ) -> Result<Self, Error> {
        let default_port = if *scheme == Scheme::HTTPS { 443 } else { 80 };
        let host = match authority.port_u16().filter(|port| *port != default_port) {
            Some(port) => format!("{}:{port}", authority.host()),
            None => authority.host().to_owned(),
        };
        let host = HeaderValue::try_from(host).map_err(Error::invalid_request)?;
        Ok(Self { scheme: scheme.clone(), authority: authority.clone(), host, forward })
    }

    pub(super) fn is(&self, scheme: &Scheme, authority: &Authority) -> bool {
        // The text is compared, because most authorities are equal as text.
        self.scheme == *scheme && self.authority.as_str() == authority.as_str()
    }

    /// Gives the head of a request the form that the HTTP version and the proxy need. May be called again for the same
    /// request.
    pub(super) fn write_head<B: Body>(&self, request: &mut Request<B>, is_http2: bool) -> Result<(), Error> {
        let has_body = !request.body().is_end_stream();
        let is_connect = request.method() == Method::CONNECT;
        let is_absolute = is_http2 || self.forward.is_some();
        let parts = if is_connect && !is_http2 {
            Some(Uri::from(self.authority.clone()).into_parts())
        } else if is_absolute == request.uri().authority().is_some() {
            None
        } else {
            let mut parts = Parts::default();
            let path = request.uri().path_and_query().filter(|path| !path.as_str().is_empty());
            parts.path_and_query = Some(path.cloned().unwrap_or(PathAndQuery::from_static("/")));
            if is_absolute {
                parts.scheme = Some(self.scheme.clone());
                parts.authority = Some(self.authority.clone());
            }
            Some(parts)
        };
        if let Some(parts) = parts {
            *request.uri_mut() = Uri::from_parts(parts).map_err(Error::invalid_request)?;
        }
        let defines_a_body = [Method::POST, Method::PUT, Method::PATCH].contains(request.method());
        let headers = request.headers_mut();
        if !is_http2 {
            headers::get_or_insert_with(headers, &HOST, || self.host.clone())?;
        }
        // RFC 9110 §8.6. Some servers respond 411 without it.
        if defines_a_body && !has_body && !headers.contains_key(TRANSFER_ENCODING) {
            headers::get_or_insert_with(headers, &CONTENT_LENGTH, || HeaderValue::from_static("0"))?;
        }
        if let Some(Some(authorization)) = &self.forward {
            headers::insert(headers, &http::header::PROXY_AUTHORIZATION, authorization.clone())?;
        }
        Ok(())
    }
}
