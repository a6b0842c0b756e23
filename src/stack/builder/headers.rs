use std::sync::Arc;

use http::HeaderValue;

use super::StackBuilder;
use crate::headers;

/// Setters of the default headers.
impl StackBuilder {
    /// The default `user-agent` of a client from [`client`](Self::client) or
    /// [`client_with_transport`](Self::client_with_transport), such as `tower-outbound/0.1.0`.
    ///
    /// A stack that is used as a layer sets no `user-agent`, and neither does a client over a custom service. The
    /// custom service may set its own.
    pub const DEFAULT_USER_AGENT: &str = concat!("tower-outbound/", env!("CARGO_PKG_VERSION"));

    /// Sends this header with every request that does not already contain a header of this name.
    ///
    /// Each use of this method adds a header. A later value replaces an earlier value of the same header name. Every
    /// attempt sends the header, because the retry layer is an inner layer.
    ///
    /// By default, a request with a body gets `content-type: application/json`. [The presets](crate::preset) send
    /// this header with every request, even without a body. A `content-type` that this method sets replaces the
    /// default, and is sent with every request.
    ///
    /// # Errors
    ///
    /// [`layer`](Self::layer) returns an error for a header that
    ///
    /// - has an invalid name or value;
    /// - frames a request or belongs to its connection, such as `content-length` or `connection`;
    /// - contains a credential: `authorization`, `proxy-authorization`, and the header of the key;
    /// - contains the request id, the number of the attempt or the idempotency key.
    ///
    /// # Notes
    ///
    /// A stack that is used as a layer adds the header to every request, even to another origin, such as the next hop
    /// of a redirect. For a secret, use [`with_api_key`](Self::with_api_key) or
    /// [`with_authorize`](Self::with_authorize).
    ///
    /// ```
    /// use tower_outbound::stack::StackBuilder;
    ///
    /// let orders = StackBuilder::new("https://orders.example.com")?
    ///     .with_header("x-api-version", "2024-06-01")
    ///     .with_header("user-agent", "shop/1.4");
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn with_header<K, V>(mut self, name: K, value: V) -> Self
    where
        K: AsRef<str>,
        V: TryInto<HeaderValue>,
    {
        match headers::parse(name, value) {
            Ok((name, value)) => drop(Arc::make_mut(&mut self.headers.0).insert(name, value)),
            Err(error) => drop(self.invalid.get_or_insert(error)),
        }
        self
    }

    /// Returns the builder of a client over the crate's own transport.
    #[cfg(feature = "client")]
    pub(crate) fn with_default_user_agent(&self) -> Self {
        let builder = self.clone();
        match builder.headers.0.contains_key(http::header::USER_AGENT) {
            true => builder,
            false => builder.with_header(http::header::USER_AGENT, Self::DEFAULT_USER_AGENT),
        }
    }
}
