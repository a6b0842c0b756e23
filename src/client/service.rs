use std::{
    fmt,
    future::{Future, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header::USER_AGENT};
use tower::ServiceBuilder;
use tower_service::Service;

use super::Transport;
use crate::{
    body::{Body, IdleBody, ReplayBody},
    config::InvalidConfig,
    error::{BoxError, Error},
    stack::{BaseUrl, StackBuilder},
};

/// The future of a call of a [`Client`].
pub type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

/// A client for one service. It is also a tower [`Service`], so that custom layers can wrap it.
///
/// ```
/// use tower_outbound::{Client, Quota, Report};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let client = Client::builder("https://api.example.com/v2")?
///     .with_key_env("ORDERS_KEY")
///     .with_quota(Quota::per_minute(300)?)
///     .client()?;
///
/// let response = client.get("/orders?open=true").await?;
/// if let Some(report) = Report::from_response(&response) {
///     println!("{}: {report}", response.status());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Clone
///
/// Cheap. Clones share the limiter and the connections.
#[derive(Clone)]
pub struct Client {
    /// The whole stack, with its type erased. A call allocates one box, for its future.
    stack: Arc<dyn Fn(Request<Body>) -> ResponseFuture + Send + Sync>,
    base_url: Arc<BaseUrl>,
    /// Whether JSON calls set `accept`, because no default header sets it.
    #[cfg(feature = "json")]
    pub(super) accepts_json: bool,
}

impl StackBuilder {
    /// Creates a ready client over plain HTTP and, with the feature `rustls`, over TLS.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`layer`](Self::layer). Also returns an error for an `https` base URL without the
    /// feature `rustls`.
    pub fn client(&self) -> Result<Client, InvalidConfig> {
        self.client_with_transport(Transport::new())
    }

    /// Creates a ready client over a custom transport.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`client`](Self::client).
    pub fn client_with_transport(&self, transport: Transport) -> Result<Client, InvalidConfig> {
        let connections = transport.connections(&self.base.origin)?;
        let service = tower::service_fn(move |request| connections.request(request));
        let mut named = self.clone();
        if !named.headers.0.contains_key(USER_AGENT) {
            named = named.with_header(USER_AGENT, HeaderValue::from_static(Self::DEFAULT_USER_AGENT));
        }
        named.client_with_service(service)
    }

    /// Creates a ready client over a custom service, such as another HTTP client or a test double.
    ///
    /// A response body of another type than hyper's costs one allocation.
    ///
    /// ```
    /// use std::convert::Infallible;
    ///
    /// use http::{Request, Response};
    /// use http_body_util::Full;
    /// use tower_outbound::{ApiKey, Body, BoxError, body::ReplayBody, preset};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), BoxError> {
    /// let service = tower::service_fn(|_: Request<ReplayBody<Body>>| async {
    ///     Ok::<_, Infallible>(Response::new(Full::from("hi")))
    /// });
    /// let rates = preset::currency_rates("https://rates.example.com")?
    ///     .with_api_key(ApiKey::new("s3cret")?)
    ///     .client_with_service(service)?;
    ///
    /// let response = rates.get("/v1/resources").await?;
    /// assert_eq!(response.into_body().collect(64).await?, "hi");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`layer`](Self::layer).
    pub fn client_with_service<S, R>(&self, service: S) -> Result<Client, InvalidConfig>
    where
        S: Service<Request<ReplayBody<Body>>, Response = Response<R>, Error: Into<BoxError>>,
        S: Clone + Send + Sync + 'static,
        S::Future: Send,
        R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let stack = ServiceBuilder::new()
            .map_response(|response: Response<IdleBody<R>>| response.map(Body::new))
            .layer(self.layer()?)
            .service(service);
        Ok(Client {
            // The stack is always ready, because the retry layer waits for its inner service in the call's future.
            stack: Arc::new(move |request| Box::pin(stack.clone().call(request))),
            base_url: Arc::new(self.base.clone()),
            #[cfg(feature = "json")]
            accepts_json: !self.headers.0.contains_key(http::header::ACCEPT),
        })
    }
}

impl Client {
    /// Creates a builder from the base URL of a service: see [`StackBuilder::new`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`StackBuilder::new`].
    pub fn builder(base_url: &str) -> Result<StackBuilder, InvalidConfig> {
        StackBuilder::new(base_url)
    }

    /// Sends a GET to `path`, which may include a query, or may be [a URL](crate::client#urls) below the base URL.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] if no response arrived. Every HTTP status is returned as `Ok`.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call. Nothing continues in the background.
    pub fn get(&self, path: &str) -> ResponseFuture {
        self.send(Method::GET, path, Body::empty())
    }

    /// Sends a POST to `path` with `body`. The path is the same as for [`get`](Self::get).
    ///
    /// The `content-type` is `application/json` by default. To change it, use [`request`](Self::request) for one call,
    /// or [`StackBuilder::with_header`] for all calls.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`get`](Self::get).
    pub fn post(&self, path: &str, body: impl Into<Body>) -> ResponseFuture {
        self.send(Method::POST, path, body.into())
    }

    /// Sends a request. Its URI must be a path that starts with a slash, or [a URL](crate::client#urls) below the base
    /// URL.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`get`](Self::get).
    pub fn request<B: Into<Body>>(&self, request: Request<B>) -> ResponseFuture {
        let (head, body) = request.into_parts();
        self.clone().call(Request::from_parts(head, body.into()))
    }

    fn send(&self, method: Method, path: &str, body: Body) -> ResponseFuture {
        match self.made(method, path, body) {
            Ok(request) => (self.stack)(request),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    pub(super) fn made(&self, method: Method, path: &str, body: Body) -> Result<Request<Body>, Error> {
        let mut request = Request::new(body);
        *request.uri_mut() = self.base_url.join(path)?;
        *request.method_mut() = method;
        Ok(request)
    }
}

impl Service<Request<Body>> for Client {
    type Response = Response<Body>;
    type Error = Error;
    type Future = ResponseFuture;

    /// Always ready, because a call waits in its future.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> ResponseFuture {
        match self.base_url.resolve(std::mem::take(request.uri_mut())) {
            Ok(uri) => {
                *request.uri_mut() = uri;
                (self.stack)(request)
            }
            Err(error) => Box::pin(ready(Err(error))),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("origin", &self.base_url.origin).finish_non_exhaustive()
    }
}
