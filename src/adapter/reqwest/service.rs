use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use ::reqwest::{Body as Content, Client, ClientBuilder, redirect, retry};
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, combinators::MapErr};
use tower_layer::Layer;
use tower_service::Service;

use super::request;
use crate::{
    clock,
    config::InvalidConfig,
    error::{BoxError, Error, MaybeRejected, redact},
    stack::{StackBuilder, StackService},
};

/// The body of a response from [`Reqwest`], streamed as it arrives. Its errors contain no URL.
///
/// Dropping the body before its end closes its connection, or resets its HTTP/2 stream. The body is `Sync`, as
/// `reqwest::Body::wrap` requires.
pub type ReqwestBody = MapErr<Content, fn(::reqwest::Error) -> BoxError>;

/// Sends requests with a `reqwest::Client`, below the layers of this crate or a preset.
///
/// Streams request and response bodies, including their trailers. [`new`](Self::new) disables the redirects and retries
/// of reqwest, because the layers would not see them. [`from_client`](Self::from_client) cannot disable redirects, so
/// the application must disable them when it builds the client.
///
/// ```
/// use bytes::Bytes;
/// use http_body_util::{BodyExt, Full};
/// use tower::{Layer, ServiceExt};
/// use tower_outbound::{ApiKey, BoxError, adapter::Reqwest, preset};
///
/// # async fn answer(listener: tokio::net::TcpListener) {
/// #     use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// #     let (mut stream, _) = listener.accept().await.unwrap();
/// #     let _ = stream.read(&mut [0; 4096]).await.unwrap();
/// #     stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await.unwrap();
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// # let url = format!("http://{}", listener.local_addr()?);
/// # tokio::spawn(answer(listener));
/// // The builder configures everything except redirects and retries: TLS, timeouts, pool, proxy.
/// let reqwest = Reqwest::new(reqwest::Client::builder().user_agent("example/1.0").no_proxy())?;
///
/// let rates = preset::currency_rates(&url)?.with_api_key(ApiKey::new("s3cret")?);
/// let service = rates.layer()?.layer(reqwest);
///
/// let request = http::Request::get(format!("{url}/v1/resources")).body(Full::<Bytes>::default())?;
/// let response = service.oneshot(request).await?;
/// assert_eq!(response.into_body().collect().await?.to_bytes(), "hi");
/// # Ok(())
/// # }
/// ```
///
/// [`StackBuilder::client_with_service`](crate::stack::StackBuilder::client_with_service) creates a
/// [`Client`](crate::Client) over this service. For code that builds `reqwest::Request`s and reads
/// `reqwest::Response`s, see [`StackBuilder::reqwest`](crate::stack::StackBuilder::reqwest) and the example
/// `wrap_reqwest` in the repository.
///
/// # Clone
///
/// Cloning is cheap. All clones share the connections.
///
/// # Errors
///
/// Returns an [`Error`] whose source is the `reqwest::Error`, except for an invalid request, `https_only` and a
/// redirect, whose text states the cause. The error contains no URL, because a URL may contain the
/// key.
///
/// - [`is_invalid_request`](Error::is_invalid_request): nothing was sent. The URI is not an absolute `http` or `https`
///   URL, or reqwest would change the URI, for example from `/a/../b` to `/b`. A signature would not match the changed
///   URI. Another cause is a request with more than 6,000 header fields, which leave no room for the fields that
///   reqwest adds.
/// - [`is_timeout`](Error::is_timeout): a `timeout` or `read_timeout` of the client was exceeded. The request may have
///   been sent.
/// - [`is_service`](Error::is_service): any other failure. The causes show whether the request was sent. It was not
///   sent if name resolution, connecting or the TLS handshake failed. It was not processed if an HTTP/2 server refused
///   the stream.
///
/// # Notes
///
/// The configuration of the `ClientBuilder` applies below the layers:
///
/// - The service returns a redirect as a response. To follow redirects, use tower-http's `FollowRedirect` *above* the
///   layers. The limiter then counts each hop, and the auth layer checks the origin of each hop.
/// - A proxy can read requests without TLS, including their key. This also concerns requests to loopback, for which
///   [`auth`](crate::auth) does not require TLS. With TLS, a proxy only tunnels the connection. The environment may set
///   a proxy if reqwest has its default feature `system-proxy`. `ClientBuilder::no_proxy` prevents this.
/// - `default_headers` are sent to every origin, so use the auth layer for a key. `default_headers`, `user_agent`,
///   cookies and `accept-encoding` are added after the auth layer, so a signature does not cover them. A header that
///   the request already contains is kept.
/// - With reqwest's features `gzip`, `brotli`, `zstd` and `deflate`, response bodies are decompressed. Their trailers
///   are preserved (tested for gzip). The limits of this crate count decompressed bytes.
/// - With HTTP/1.1, the trailers of a request are sent only if its `trailer` header names them. The trailers of a
///   response are received only if the request has `te: trailers`.
/// - `connection_verbose` logs every byte that is sent, including the key.
/// - The service accepts requests with any body, so the compiler cannot infer the body type for `service.ready()`. Use
///   `oneshot`, or `ServiceExt::<Request<B>>::ready(&mut service)`.
/// - The `timeout` of the client or of one `reqwest::Request` covers one attempt, including the response's body.
///   `read_timeout` also covers the wait for the response headers. The errors of this crate's timeout layers contain
///   more details.
/// - Permanent failures are not retried, such as an invalid certificate: see
///   [retries](crate::guide::retries#permanent-failures). With native-tls, this holds only for OpenSSL, because its
///   errors are recognized by their text.
#[derive(Clone)]
pub struct Reqwest {
    client: Client,
    /// Whether the client may follow redirects. The redirect policy of an existing client cannot be read.
    may_redirect: bool,
}

impl Reqwest {
    /// Builds a client without redirects and retries, even if `builder` configures them.
    ///
    /// # Errors
    ///
    /// Returns an error if reqwest cannot build the client, for example because of its TLS backend or a certificate.
    ///
    /// # Panics
    ///
    /// Panics if reqwest panics. With its feature `rustls-no-provider`, reqwest panics if no crypto provider is
    /// installed.
    pub fn new(builder: ClientBuilder) -> Result<Self, InvalidConfig> {
        let client = builder.redirect(redirect::Policy::none()).retry(retry::never()).build();
        let client = client.map_err(|error| {
            let why = format!("{:#}", Error::from_service(error.without_url()));
            InvalidConfig::new("reqwest client", why, "a configuration that reqwest accepts")
        })?;
        Ok(Self { client, may_redirect: false })
    }

    /// Uses an existing client. **Build that client with `redirect::Policy::none()`.** Prefer [`new`](Self::new), which
    /// ensures this. [`get_ref`](Self::get_ref) returns the client, for use elsewhere.
    ///
    /// If you cannot build the client, the layers still work for a server that sends no redirects. A redirected call
    /// fails. Only a bearer key is then safe, because a `reqwest::Client` follows redirects by default:
    ///
    /// - The client removes `authorization` and cookies from a request to another host. It keeps other headers, such as
    ///   `x-api-key`, and the query of the new URL. It may therefore send the key to another host.
    /// - The limiter does not count the requests to the redirects' targets.
    ///
    /// This service detects a redirect only after the client has followed it, if the URL of the response differs from
    /// the URL of the request. The call then fails and is not retried. A chain of redirects that ends at the first URL
    /// is not detected.
    ///
    /// This service cannot see whether the client follows redirects, so an error may belong to any request of a chain
    /// of redirects. No error therefore proves that nothing was sent. The retry layer then retries only idempotent
    /// requests, even after a refused connection. Over a service from [`new`](Self::new), it also retries a POST that
    /// was not sent. The client's own retries have no effect, because the client receives no body that it can clone.
    ///
    /// ```
    /// use tower_outbound::adapter::Reqwest;
    ///
    /// # fn main() -> reqwest::Result<()> {
    /// let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
    /// let reqwest = Reqwest::from_client(client);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_client(client: Client) -> Self {
        Self { client, may_redirect: true }
    }

    /// Returns the client and its connection pool. A request that is sent directly with this client bypasses all
    /// layers.
    ///
    /// The service has no `get_mut`, because a caller could use it to install a client that follows redirects.
    pub fn get_ref(&self) -> &Client {
        &self.client
    }

    /// Returns the client.
    pub fn into_inner(self) -> Client {
        self.client
    }
}

impl StackBuilder {
    /// Creates the whole stack over an existing `reqwest::Client`, for the requests and responses of reqwest. To create
    /// this crate's [`Client`](crate::Client) over a `reqwest::Client`, use
    /// `.client_with_service(Reqwest::from_client(client))`.
    ///
    /// The `reqwest::Client` must be built with `redirect::Policy::none()`: see [`Reqwest::from_client`].
    ///
    /// [`SendWith::send_with`](super::SendWith::send_with) sends the requests of reqwest through the stack. The stack
    /// is also a tower service for `http::Request`s with any streamed body. It is `Clone + Send + Sync`, so it fits
    /// into the state of an axum server:
    ///
    /// ```no_run
    /// use tower_outbound::{
    ///     BoxError, Client, Quota,
    ///     adapter::{Reqwest, SendWith},
    ///     stack::StackService,
    /// };
    ///
    /// #[derive(Clone)]
    /// struct AppState {
    ///     client: reqwest::Client,
    ///     orders: StackService<Reqwest>,
    /// }
    ///
    /// fn state() -> Result<AppState, BoxError> {
    ///     let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
    ///     let orders = Client::builder("https://api.example.com/v2")?
    ///         .with_api_key_env("ORDERS_KEY")
    ///         .with_quota(Quota::per_minute(300)?)
    ///         .reqwest(client.clone())?;
    ///     Ok(AppState { client, orders })
    /// }
    ///
    /// async fn order(state: AppState, number: u64) -> Result<String, BoxError> {
    ///     let url = format!("https://api.example.com/v2/orders/{number}");
    ///     let response = state.client.get(url).send_with(&state.orders).await?;
    ///     Ok(response.error_for_status()?.text().await?)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`layer`](Self::layer).
    pub fn reqwest(&self, client: Client) -> Result<StackService<Reqwest>, InvalidConfig> {
        Ok(self.layer()?.layer(Reqwest::from_client(client)))
    }
}

impl<B> Service<Request<B>> for Reqwest
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<ReqwestBody>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.client.poll_ready(cx).map_err(|error| Error::from_readiness(error.without_url()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = request::translate(request).map(|request| {
            let sent_to = self.may_redirect.then(|| request.url().clone());
            (self.client.call(request), sent_to, clock::now())
        });
        let future = async move {
            let (pending, sent_to, since) = call?;
            match pending.await {
                Ok(response) if sent_to.as_ref().is_some_and(|url| url != response.url()) => {
                    Err(request::followed_redirect())
                }
                Ok(response) => {
                    Ok(Response::<Content>::from(response).map(|body| body.map_err(without_url as _)))
                }
                Err(error) => Err(request::convert_error(error, since.elapsed(), sent_to.is_some())),
            }
        };
        Box::pin(MaybeRejected::Calling { future })
    }
}

fn without_url(error: ::reqwest::Error) -> BoxError {
    redact(error.without_url())
}

/// Omits the client, because the client's `Debug` output contains its default headers and proxies.
impl fmt::Debug for Reqwest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reqwest").field("may_redirect", &self.may_redirect).finish_non_exhaustive()
    }
}
