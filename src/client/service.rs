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

/// The future of a [`Client`]'s call.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

/// Calls one service. Also a tower [`Service`], for custom layers on top.
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
    /// The whole stack as one type. A call costs one box, of its future.
    stack: Arc<dyn Fn(Request<Body>) -> ResponseFuture + Send + Sync>,
    base_url: Arc<BaseUrl>,
    /// Whether JSON calls set `accept`, because the preset does not.
    #[cfg(feature = "json")]
    pub(super) accepts_json: bool,
}

impl StackBuilder {
    /// Makes a ready client over plain HTTP and, with the feature `rustls`, over TLS.
    ///
    /// # Errors
    ///
    /// Returns an error as [`layer`](Self::layer) does, and for an `https` base URL without the feature `rustls`.
    pub fn client(&self) -> Result<Client, InvalidConfig> {
        self.client_with_transport(Transport::new())
    }

    /// Makes a ready client over a custom transport.
    ///
    /// # Errors
    ///
    /// Returns an error as [`client`](Self::client) does.
    pub fn client_with_transport(&self, transport: Transport) -> Result<Client, InvalidConfig> {
        let connections = transport.connections(&self.base.origin)?;
        let service = tower::service_fn(move |request| connections.request(request));
        let mut named = self.clone();
        if !named.headers.0.contains_key(USER_AGENT) {
            named = named.with_header(USER_AGENT, HeaderValue::from_static(Self::DEFAULT_USER_AGENT));
        }
        named.client_with_service(service)
    }

    /// Makes a ready client over a custom service: another HTTP client, or a test double.
    ///
    /// A response body that is not hyper's costs one allocation.
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
    /// Returns an error as [`layer`](Self::layer) does.
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
            // Always ready, because the retry layer waits for its inner service in its future.
            stack: Arc::new(move |request| Box::pin(stack.clone().call(request))),
            base_url: Arc::new(self.base.clone()),
            #[cfg(feature = "json")]
            accepts_json: !self.headers.0.contains_key(http::header::ACCEPT),
        })
    }
}

impl Client {
    /// Starts from the base URL of a service: [`StackBuilder::new`].
    ///
    /// # Errors
    ///
    /// Returns an error as [`StackBuilder::new`] does.
    pub fn builder(base_url: &str) -> Result<StackBuilder, InvalidConfig> {
        StackBuilder::new(base_url)
    }

    /// Sends a GET to `path`, which may have a query. `path` may also be [a URL](crate::client#urls) below the base URL.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] if no response arrived. Every HTTP status is returned as `Ok`.
    ///
    /// # Cancellation
    ///
    /// Dropping the future drops the call. Nothing of the call runs on.
    pub fn get(&self, path: &str) -> ResponseFuture {
        self.send(Method::GET, path, Body::empty())
    }

    /// Sends a POST to `path` with `body`, as [`get`](Self::get) does.
    ///
    /// The `content-type` is `application/json` by default. [`request`](Self::request) sets another one for one call,
    /// and [`StackBuilder::with_header`] for all calls.
    ///
    /// # Errors
    ///
    /// Returns an error as [`get`](Self::get) does.
    pub fn post(&self, path: &str, body: impl Into<Body>) -> ResponseFuture {
        self.send(Method::POST, path, body.into())
    }

    /// Sends a request. Its URI is a path that starts with a slash, or [a URL](crate::client#urls) below the base URL.
    ///
    /// # Errors
    ///
    /// Returns an error as [`get`](Self::get) does.
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

    /// Always returns ready: a call waits in its future.
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
