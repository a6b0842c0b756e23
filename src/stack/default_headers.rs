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

use super::StackBuilder;
use crate::{
    auth::{NOT_FRAMING, frames_request},
    error::{BoxError, Error, InvalidConfig, MaybeRejected},
    headers::{self, TooManyFields},
};

/// The headers that each request gets unless its caller has set them.
#[derive(Clone, Default)]
pub(super) struct DefaultHeadersLayer {
    /// `None` means JSON, on requests with a body.
    content_type: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    /// Each name is unique. `None` while empty, so that a clone costs nothing.
    others: Option<Arc<Vec<(HeaderName, HeaderValue)>>>,
}

impl DefaultHeadersLayer {
    pub(super) fn set(&mut self, name: HeaderName, value: HeaderValue) {
        if name == CONTENT_TYPE {
            self.content_type = Some(value);
        } else if name == USER_AGENT {
            self.user_agent = Some(value);
        } else {
            let others = Arc::make_mut(self.others.get_or_insert_default());
            others.retain(|(other, _)| *other != name);
            others.push((name, value));
        }
    }

    #[cfg(feature = "json")]
    fn has(&self, name: &HeaderName) -> bool {
        self.others().any(|(other, _)| other == name)
    }

    fn others(&self) -> impl Iterator<Item = &(HeaderName, HeaderValue)> {
        self.others.iter().flat_map(|others| others.iter())
    }

    /// Rejects headers that frame a request, hold a credential or are set by the stack. `key` is the header of the
    /// preset's own key: the stack sets some headers before the key, which would then not be sent.
    pub(super) fn check(
        &self,
        key: Option<&HeaderName>,
        request_id: &HeaderName,
    ) -> Result<(), InvalidConfig> {
        let set_before = [&ACCEPT, &CONTENT_TYPE, &USER_AGENT, request_id];
        if let Some(name) = key.filter(|name| set_before.contains(name)) {
            let expected = "a header that the stack does not set itself, such as x-api-key";
            return Err(InvalidConfig::new("key header", name.to_string(), expected));
        }
        let expected = |name: &HeaderName| {
            if frames_request(name) {
                Some(NOT_FRAMING)
            } else if key == Some(name) || [AUTHORIZATION, PROXY_AUTHORIZATION].contains(name) {
                Some("a header without a credential, which goes to with_api_key or with_authorize")
            } else if name == request_id {
                Some("a header other than the request id's: each request gets its own")
            } else {
                None
            }
        };
        let names = self.names();
        match names.filter_map(|name| Some((name, expected(name)?))).next() {
            Some((name, expected)) => Err(InvalidConfig::new("header", name.to_string(), expected)),
            None => Ok(()),
        }
    }

    fn names(&self) -> impl Iterator<Item = &HeaderName> {
        let content_type = self.content_type.as_ref().map(|_| &CONTENT_TYPE);
        let user_agent = self.user_agent.as_ref().map(|_| &USER_AGENT);
        self.others().map(|(name, _)| name).chain(content_type).chain(user_agent)
    }

    fn put_on(&self, headers: &mut HeaderMap, has_body: bool) -> Result<(), TooManyFields> {
        headers::check_room(headers)?;
        let json = || HeaderValue::from_static("application/json");
        match &self.content_type {
            Some(value) => headers::get_or_insert_with(headers, &CONTENT_TYPE, || value.clone()).map(drop)?,
            None if has_body => headers::get_or_insert_with(headers, &CONTENT_TYPE, json).map(drop)?,
            None => {}
        }
        if let Some(value) = &self.user_agent {
            headers::get_or_insert_with(headers, &USER_AGENT, || value.clone())?;
        }
        for (name, value) in self.others() {
            headers::get_or_insert_with(headers, name, || value.clone())?;
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

/// Shows the names and no values.
impl fmt::Debug for DefaultHeadersLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// Sets the default headers of a stack on each request: see [`StackBuilder::with_header`].
///
/// # Errors
///
/// Returns [`Error::is_invalid_request`] if a request has more than 6,000 header fields, so that each layer and client
/// below can add its own. Otherwise returns the inner service's error.
#[derive(Debug, Clone)]
pub struct DefaultHeaders<S> {
    inner: S,
    headers: DefaultHeadersLayer,
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

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let has_body = !request.body().is_end_stream();
        let added = self.headers.put_on(request.headers_mut(), has_body);
        MaybeRejected::new(added, || self.inner.call(request))
    }
}

/// Default headers.
impl StackBuilder {
    /// The `user-agent` of a ready client without [`with_user_agent`](Self::with_user_agent), such as
    /// `tower-outbound/0.1.0`.
    pub const DEFAULT_USER_AGENT: &str = concat!("tower-outbound/", env!("CARGO_PKG_VERSION"));

    /// Sends this header with every request, unless the request has a header of that name.
    ///
    /// Adds to the default headers, and replaces an earlier value of the same name. The retry layer is below, so every
    /// attempt sends the header.
    ///
    /// The default is `content-type: application/json`: of [the three presets](crate::preset) on every request,
    /// otherwise on every request with a body. A `content-type` that is given here replaces it on every request.
    ///
    /// # Errors
    ///
    /// [`layer`](Self::layer) returns an error for a header that
    ///
    /// - frames a request or belongs to its connection, such as `content-length` or `connection`;
    /// - holds a credential: `authorization`, `proxy-authorization`, and the header of the key.
    ///
    /// # Notes
    ///
    /// A layer also adds the header to requests to other origins, such as the next hop of a redirect. Give a secret to
    /// [`with_api_key`](Self::with_api_key) or [`with_authorize`](Self::with_authorize) instead.
    ///
    /// ```
    /// use http::{HeaderName, HeaderValue};
    /// use tower_outbound::stack::StackBuilder;
    ///
    /// let orders = StackBuilder::new("https://orders.example.com")?.with_name("orders")
    ///     .with_header(HeaderName::from_static("x-api-version"), HeaderValue::from_static("2024-06-01"))
    ///     .with_user_agent(HeaderValue::from_static("shop/1.4"));
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.set(name, value);
        self
    }

    /// Sends this `user-agent` with every request, unless the request has one.
    ///
    /// The default of a ready client from [`client`](Self::client) or [`client_with_transport`](Self::client_with_transport) is
    /// [`DEFAULT_USER_AGENT`](Self::DEFAULT_USER_AGENT). A layer, and a client around another service, have no default,
    /// because the service may set its own.
    pub fn with_user_agent(self, value: HeaderValue) -> Self {
        self.with_header(USER_AGENT, value)
    }

    pub(crate) fn with_default_user_agent(mut self) -> Self {
        let value = HeaderValue::from_static(Self::DEFAULT_USER_AGENT);
        self.headers.user_agent.get_or_insert(value);
        self
    }

    /// Sets the `content-type` of the presets: the services' sample calls send it on a GET, too.
    pub(crate) fn with_json_on_every_request(self) -> Self {
        self.with_header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
    }

    #[cfg(feature = "json")]
    pub(crate) fn has_header(&self, name: &HeaderName) -> bool {
        self.headers.has(name)
    }
}
