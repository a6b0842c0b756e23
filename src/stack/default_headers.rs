use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, PROXY_AUTHORIZATION, USER_AGENT},
};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    auth::{NOT_FRAMING, frames_request},
    config::InvalidConfig,
    error::{BoxError, Error, MaybeRejected},
    headers,
    stack::framing,
};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Adds the default headers of a stack to each request that does not contain them. A request with a body also gets a
/// `content-type`. [`StackLayer`](super::StackLayer) contains this layer.
#[derive(Clone, Default)]
pub struct DefaultHeadersLayer(pub(crate) Arc<HeaderMap>);

impl DefaultHeadersLayer {
    /// Rejects a default header that frames a request, contains a credential or is the header of the request id. `key`
    /// is the header of the stack's own key. It is rejected if an outer layer sets the same header, because the key
    /// would then not be sent.
    pub(super) fn check(
        &self,
        key: Option<&HeaderName>,
        request_id: &HeaderName,
    ) -> Result<(), InvalidConfig> {
        let set_before = [&ACCEPT, &CONTENT_TYPE, &USER_AGENT, request_id];
        if let Some(name) = key.filter(|name| set_before.contains(name)) {
            let expected = "a header that the stack does not set itself, such as x-api-key";
            return Err(InvalidConfig::new("key header", name.to_string(), expected).at("key_placement"));
        }
        for name in self.0.keys() {
            let expected = if frames_request(name) {
                NOT_FRAMING
            } else if key == Some(name) || [AUTHORIZATION, PROXY_AUTHORIZATION].contains(name) {
                "a header that contains no credential: use with_api_key or with_authorize for the credential"
            } else if name == request_id {
                "any header except the header of the request id, because each call has its own id"
            } else {
                continue;
            };
            return Err(InvalidConfig::new("header", name.to_string(), expected));
        }
        Ok(())
    }

    fn put_on(&self, headers: &mut HeaderMap, has_body: bool) -> Result<(), Error> {
        headers::check_room(headers)?;
        for (name, value) in self.0.iter() {
            headers::get_or_insert_with(headers, name, || value.clone())?;
        }
        if has_body && !self.0.contains_key(CONTENT_TYPE) {
            headers::get_or_insert_with(headers, &CONTENT_TYPE, || JSON)?;
        }
        Ok(())
    }
}

impl<S> Layer<S> for DefaultHeadersLayer {
    type Service = DefaultHeaders<S>;

    fn layer(&self, inner: S) -> Self::Service {
        DefaultHeaders { inner, headers: self.clone() }
    }
}

/// Writes the names of the headers, but not their values.
impl fmt::Debug for DefaultHeadersLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The service of [`DefaultHeadersLayer`]: see [`StackBuilder::with_header`](super::StackBuilder::with_header).
///
/// # Errors
///
/// Returns an error with [`Error::is_invalid_request`] if a request has more than 6,000 header fields, or a header that
/// [contradicts its URL or its body](crate::stack#headers). Otherwise returns the inner service's error. The maximum
/// leaves room for the header fields that the inner layers and the client add.
#[derive(Debug, Clone)]
pub struct DefaultHeaders<S> {
    inner: S,
    headers: DefaultHeadersLayer,
}

impl<S> DefaultHeaders<S> {
    inner_service!();
}

impl<S, B, R> Service<Request<B>> for DefaultHeaders<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
    B: Body,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = MaybeRejected<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    // Not inlined, so that the compiler constructs the future in its final place.
    #[inline(never)]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let has_body = !request.body().is_end_stream();
        let checked = framing::check(&request);
        match checked.and_then(|()| self.headers.put_on(request.headers_mut(), has_body)) {
            Ok(()) => MaybeRejected::Calling { future: self.inner.call(request) },
            Err(error) => MaybeRejected::rejected(error),
        }
    }
}
