use std::{
    convert, fmt,
    future::ready,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use tower::{ServiceBuilder, service_fn};
use tower_service::Service;

use super::{
    outer_call::{self, OuterCall},
    request::RequestBuilder,
    response::ResponseFuture,
    settings::{BoxFuture, Current, Settings},
};
use crate::{
    body::{Body, IdleBody, ReplayBody},
    config::InvalidConfig,
    error::{BoxError, Error},
    limit::{AnyLimiter, InFlightBody},
    stack::{BaseUrl, OuterService, StackBuilder, boxed},
    transport::TransportConfig,
};

/// A client for one service.
///
/// ```no_run
/// use tower_outbound::{Client, Quota};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let client = Client::builder("https://api.example.com/v2")?
///     .with_api_key_env("ORDERS_KEY")
///     .with_quota(Quota::per_minute(300)?)
///     .with_max_attempts(5)
///     .client()?;
///
/// let response = client.get("/orders").query(&[("state", "open")]).await?;
/// println!("{}: {}", response.status(), response.text().await?);
/// # Ok(())
/// # }
/// ```
///
#[cfg_attr(
    feature = "json",
    doc = "For JSON, see [`fetch_json`](crate::client::RequestBuilder::fetch_json) and [`json`](crate::client::RequestBuilder::json)."
)]
#[cfg_attr(not(feature = "json"), doc = "For JSON, enable the feature `json`.")]
///
/// A client is also a tower [`Service`], so that custom layers can wrap it.
///
/// # Errors
///
/// A request returns an [`Error`] if no response arrived. Every HTTP status is returned as `Ok`.
///
/// # Clone
///
/// Cheap: every clone uses the same limiter, the same connections and the same settings, which
/// [`reconfigure`](Self::reconfigure) changes.
#[derive(Clone)]
pub struct Client {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) base_url: BaseUrl,
    pub(super) current: Arc<Current>,
    /// The layers above the stack, which are built once.
    pub(super) outer: Option<OuterService>,
    /// Empty over a custom service.
    pub(super) transport: OnceLock<TransportConfig>,
}

impl StackBuilder {
    /// Creates a client over plain HTTP and, with the feature `rustls`, over TLS. A builder from a configuration has
    /// the transport of the configuration, otherwise the default [`TransportConfig`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`layer`](Self::layer) and [`TransportConfig::build`]. Also returns an error for an
    /// `https` base URL without the feature `rustls`.
    pub fn client(&self) -> Result<Client, InvalidConfig> {
        self.client_with_transport(self.transport.clone())
    }

    /// Creates a client with these settings of its connections. To share connections between clients, build the
    /// transport and use [`client_with_service`](Self::client_with_service).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`client`](Self::client) and [`TransportConfig::build`].
    pub fn client_with_transport(&self, transport: TransportConfig) -> Result<Client, InvalidConfig> {
        let built = transport.clone().build().map_err(|error| error.at("transport"))?;
        if let Some(origin) = self.origins().find(|origin| cfg!(not(feature = "rustls")) && origin.is_tls()) {
            let expected = "http, or https with the crate's feature `rustls`";
            return Err(InvalidConfig::of_setting("base url", origin.to_string(), expected));
        }
        // The transport's own future is not boxed again.
        let service = service_fn(move |request| built.send(request));
        let client = self.with_default_user_agent().client_with_service(service)?;
        client.inner.transport.get_or_init(|| transport);
        Ok(client)
    }

    /// Creates a client over a custom service, such as another HTTP client or a test double.
    ///
    /// A response body costs one allocation, unless its type is hyper's and the limiter does not
    /// [limit the requests in flight](crate::limit::LocalLimiter::with_max_in_flight).
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
    /// assert_eq!(response.into_body().bytes_up_to(64).await?, "hi");
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
        if self.transport_layers.0.is_empty() {
            return self.client_over(service);
        }
        self.client_over(self.transport_layers.layer(boxed(service, Into::into)))
    }

    fn client_over<S, R>(&self, service: S) -> Result<Client, InvalidConfig>
    where
        S: Service<Request<ReplayBody<Body>>, Response = Response<R>, Error: Into<BoxError>>,
        S: Clone + Send + Sync + 'static,
        S::Future: Send,
        R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let build = move |builder: Self| {
            let stack = ServiceBuilder::new()
                .map_response(|response: Response<IdleBody<InFlightBody<R>>>| response.map(unwrapped))
                .layer(builder.whole_layer()?)
                .service(service.clone());
            // The stack is always ready, because the retry layer waits for its inner service in the call's future.
            let stack = move |request| -> BoxFuture { Box::pin(stack.clone().call(request)) };
            Ok(Arc::new(Settings { builder, stack }) as Arc<Settings>)
        };
        let (base_url, current) = (self.base.clone(), Arc::new(Current::new(self.clone(), build)?));
        let outer = (!self.outer_layers.0.is_empty()).then(|| {
            let (base_url, current) = (base_url.clone(), Arc::clone(&current));
            let stack = service_fn(move |request| outer_call::send(base_url.clone(), &current, request));
            self.outer_layers.layer(boxed(stack, convert::identity))
        });
        Ok(Client { inner: Arc::new(Inner { base_url, current, outer, transport: OnceLock::new() }) })
    }
}

/// Unwraps a body that is not counted or has ended, because [`Body::new`] would box the wrapper.
fn unwrapped<R>(body: IdleBody<InFlightBody<R>>) -> Body
where
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    if body.get_ref().is_some_and(InFlightBody::is_watched) && !http_body::Body::is_end_stream(&body) {
        return Body::new(body);
    }
    Body::new(body.map(InFlightBody::into_inner))
}

impl Client {
    /// Creates a builder from the base URL of a service: see [`StackBuilder::new`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`StackBuilder::new`].
    pub fn builder(base_url: impl AsRef<str>) -> Result<StackBuilder, InvalidConfig> {
        StackBuilder::new(base_url)
    }

    /// Returns the limiter of the client and of all its clones, for example to take its snapshot or to pause it: see
    /// [`StackBuilder::limiter`]. With endpoint limits, this is the limiter of the account. The limiter of a
    /// [`Pool`](crate::stack::Pool) is no `LocalLimiter`: keep clones of the members' limiters instead.
    ///
    /// ```
    /// use tower_outbound::{Client, Quota, limit::LocalLimiter};
    ///
    /// # fn run() -> Result<(), tower_outbound::InvalidConfig> {
    /// let quota = Quota::per_minute(300)?;
    /// let client = Client::builder("https://api.example.com")?.without_credential().with_quota(quota).client()?;
    ///
    /// // For a page about the state of the program.
    /// let queued = client.limiter().downcast_ref().map(|limiter: &LocalLimiter| limiter.snapshot().queued);
    /// assert_eq!(queued, Some(0));
    /// # Ok(())
    /// # }
    /// # run().unwrap();
    /// ```
    pub fn limiter(&self) -> AnyLimiter {
        self.inner.current.get().builder.limiter().clone()
    }

    fn resolve(&self, mut request: Request<Body>) -> Result<Request<Body>, Error> {
        *request.uri_mut() = self.inner.base_url.resolve(std::mem::take(request.uri_mut()))?;
        Ok(request)
    }

    /// Starts a call with these settings. Also returns its marker if there are outer layers.
    pub(super) fn run(
        &self,
        settings: &Arc<Settings>,
        request: Result<Request<Body>, Error>,
    ) -> (BoxFuture, Option<Arc<OuterCall>>) {
        match (request, &self.inner.outer) {
            (Ok(request), None) => ((settings.stack)(request), None),
            (Ok(request), Some(outer)) => {
                let call = OuterCall::new(settings, request.extensions().get());
                (Box::pin(Arc::clone(&call).run(outer.clone(), request)), Some(call))
            }
            (Err(error), _) => (Box::pin(ready(Err(error))), None),
        }
    }
}

impl Client {
    /// Creates a GET of `path`. `.await` sends the request: see [`RequestBuilder`].
    ///
    /// The path may include a query, and may also be an absolute URL below the base URL: see
    /// [URLs](crate::client#urls). To insert an untrusted string into the path, use a
    /// [`PathSegment`](super::PathSegment).
    #[inline]
    pub fn get(&self, path: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    /// Creates a HEAD of `path`.
    pub fn head(&self, path: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::HEAD, path)
    }

    /// Creates a POST to `path`.
    pub fn post(&self, path: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::POST, path)
    }

    /// Creates a PUT to `path`.
    pub fn put(&self, path: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::PUT, path)
    }

    /// Creates a PATCH of `path`.
    pub fn patch(&self, path: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::PATCH, path)
    }

    /// Creates a DELETE of `path`.
    pub fn delete(&self, path: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::DELETE, path)
    }

    /// Creates a request with any method.
    pub fn request(&self, method: Method, path: impl AsRef<str>) -> RequestBuilder {
        RequestBuilder::new(self, method, path.as_ref())
    }

    /// Sends an [`http::Request`]. Its URI must be a path that starts with a slash, or an absolute
    /// [URL](crate::client#urls) below the base URL. Its headers must not
    /// [contradict the URL or the body](crate::stack#headers).
    ///
    /// The total timeout counts from this call: see [`send`](RequestBuilder::send).
    ///
    /// # Errors
    ///
    /// Returns an [`Error`](crate::Error) if no response arrived. Every HTTP status is returned as `Ok`.
    pub fn execute<B: Into<Body>>(&self, request: Request<B>) -> ResponseFuture {
        ResponseFuture::new(self.clone(), self.resolve(request.map(Into::into)))
    }
}

impl Service<Request<Body>> for Client {
    type Response = Response<Body>;
    type Error = Error;
    type Future = BoxFuture;

    /// A client is always ready, because each call waits in its own future.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> BoxFuture {
        self.run(&self.inner.current.get(), self.resolve(request)).0
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("origin", &self.inner.base_url.origin).finish_non_exhaustive()
    }
}
