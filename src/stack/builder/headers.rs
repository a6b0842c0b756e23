use std::sync::Arc;

use http::{HeaderName, HeaderValue, header::CONTENT_TYPE};

use super::StackBuilder;
use crate::stack::default_headers::JSON;

/// Default headers.
impl StackBuilder {
    /// The default `user-agent` of a ready client from [`client`](Self::client) or
    /// [`client_with_transport`](Self::client_with_transport), such as `tower-outbound/0.1.0`.
    ///
    /// A layer, and a client around another service, have no default, because the service may set its own.
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
    /// use http::{HeaderName, HeaderValue, header::USER_AGENT};
    /// use tower_outbound::stack::StackBuilder;
    ///
    /// let orders = StackBuilder::new("https://orders.example.com")?.with_name("orders")
    ///     .with_header(HeaderName::from_static("x-api-version"), HeaderValue::from_static("2024-06-01"))
    ///     .with_header(USER_AGENT, HeaderValue::from_static("shop/1.4"));
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        Arc::make_mut(&mut self.headers.0).insert(name, value);
        self
    }

    /// Sets the `content-type` of the presets: the services' sample calls send it on a GET, too.
    pub(crate) fn with_json_on_every_request(self) -> Self {
        self.with_header(CONTENT_TYPE, JSON)
    }
}
