use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, ready},
};

use ::reqwest::{Body as Content, Client, ClientBuilder, redirect, retry};
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, combinators::MapErr};
use tower_layer::Layer;
use tower_service::Service;

use super::{error, request};
use crate::{
    clock,
    config::InvalidConfig,
    error::{BoxError, Error, polled_after_completion, redact},
    stack::{StackBuilder, StackService},
};

/// The body of a response that came through [`Reqwest`], streamed as it arrives. Its errors contain no URL.
///
/// Dropping it before its end closes its connection, or resets its HTTP/2 stream. It is `Sync`, as `reqwest::Body::wrap`
/// requires.
pub type ReqwestBody = MapErr<Content, fn(::reqwest::Error) -> BoxError>;

/// Sends a request by a `reqwest::Client`, so that every layer of this crate and every preset goes over it.
///
/// Takes any request body, streamed; the answer's body is streamed, too, and trailers pass both ways. What reqwest does
/// on its own behind the layers' back is switched off: it follows no redirect, and sends nothing again.
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
/// // All that is yours to choose, but for redirects and retries: TLS, timeouts, pool, proxy.
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
/// [`StackBuilder::client_with_service`](crate::stack::StackBuilder::client_with_service) makes a ready [`Client`](crate::Client) of it. The repository's
/// example `wrap_reqwest` shows how code that builds `reqwest::Request`s and reads `reqwest::Response`s keeps
/// doing so.
///
/// # Clone
///
/// Cheap; clones share the connections.
///
/// # Errors
///
/// An [`Error`], with the `reqwest::Error` as its source, and never a URL in it, for that may hold the key.
///
/// - [`is_invalid_request`](Error::is_invalid_request): nothing was sent. The URI is not an absolute one of `http` or
///   `https`, or reqwest would send another one, such as `/b` for `/a/../b`, so that a signature would not cover what is
///   sent. Or the request has more than 6,000 header fields, which leaves no room for reqwest's own.
/// - [`is_timeout`](Error::is_timeout): a `timeout` or `read_timeout` of the client ran out. It may have been sent.
/// - [`is_service`](Error::is_service): anything else. Whether it was sent is read off its causes as it is for hyper:
///   what could not connect, resolve a name or begin TLS was not, nor what HTTP/2 refused.
///
/// # Surprises
///
/// What a `ClientBuilder` was told to do, it does below the layers:
///
/// - A redirect is an answer. tower-http's `FollowRedirect` *above* the layers follows it so that each hop is limited and
///   has its origin looked at.
/// - A proxy reads what goes without TLS, the key as well, also what goes to loopback and is therefore let pass by
///   [`auth`](crate::auth). With reqwest's feature `system-proxy`, which is on by default, the environment names one.
///   `ClientBuilder::no_proxy` excludes that; over TLS there is only a tunnel.
/// - `default_headers` go to every origin. A key belongs in the auth layer. They, `user_agent`, cookies and
///   `accept-encoding` are put on below a signature, which does not cover them, and where a request has such a header
///   already it is kept.
/// - With one of reqwest's features `gzip`, `brotli`, `zstd` and `deflate`, bodies arrive decompressed, and their trailers
///   after them, which a test holds it to for gzip. The caps of this crate count what arrives.
/// - HTTP/1.1 has trailers only for who says that there will be some: in `trailer` where they are, and in `te: trailers`
///   where they are wanted.
/// - `connection_verbose` logs every byte that is sent, and so the key.
/// - It takes requests of any body, so `service.ready()` can't tell of which: call it by `oneshot`, or by
///   `ServiceExt::<Request<B>>::ready(&mut service)`.
/// - `timeout`, of the client or of one `reqwest::Request`, covers one attempt with the body of its
///   answer; `read_timeout` bounds the wait for its head as well. The layers' own timeouts say more in their errors.
/// - The stack's rule that a wrong certificate is not worth another attempt needs the feature `rustls` of this crate
///   and rustls in reqwest. Without them it is tried again as any failure to connect.
#[derive(Clone)]
pub struct Reqwest {
    client: Client,
    /// Whether the client may follow redirects. Its policy cannot be read.
    may_redirect: bool,
}

impl Reqwest {
    /// Over the client that `builder` makes, with its redirects and its own retries switched off, whatever the builder
    /// says of them.
    ///
    /// # Errors
    ///
    /// When reqwest can't make the client, because of a TLS backend, a certificate or a setting.
    ///
    /// # Panics
    ///
    /// Where reqwest does: with its feature `rustls-no-provider`, when no provider was installed.
    pub fn new(builder: ClientBuilder) -> Result<Self, InvalidConfig> {
        let client = builder.redirect(redirect::Policy::none()).retry(retry::never()).build();
        let client = client.map_err(|error| {
            let why = format!("{:#}", Error::from_service(error.without_url()));
            InvalidConfig::new("reqwest client", why, "settings of which reqwest can make a client")
        })?;
        Ok(Self { client, may_redirect: false })
    }

    /// Over a client that there is already. **It must have been built with `redirect::Policy::none()`**, and
    /// [`new`](Self::new) is the safer way: [`get_ref`](Self::get_ref) gives its client back, to be used elsewhere too.
    ///
    /// By default a client follows redirects. It takes off `authorization` and cookies on the way to another host, but no
    /// header such as `x-api-key` and nothing that the server repeats of the query, and so gives away a key that is there;
    /// and it does not ask the limiter. That can't be seen beforehand, only afterwards, by where the answer comes from:
    /// the call then fails, on the first redirect, and is not tried again. A chain of redirects that ends where it began
    /// is not seen at all.
    ///
    /// As no error can tell any more which of the hops it is of, none counts as proof that nothing was sent: what is not
    /// idempotent is never sent again. The client's own retries are off, for it is given no body that it can repeat.
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

    /// Returns a reference to the client, with its pool of connections. Requests that it sends directly pass no layer.
    ///
    /// There is no `get_mut`, because a client put in its place could follow redirects unseen.
    pub fn get_ref(&self) -> &Client {
        &self.client
    }

    /// Returns the client.
    pub fn into_inner(self) -> Client {
        self.client
    }
}

impl StackBuilder {
    /// Puts the whole stack over an existing `reqwest::Client`, as [`Reqwest::from_client`] describes it: build the client
    /// with `redirect::Policy::none()`.
    ///
    /// The service takes `http::Request`s of any streamed body. `get_ref().get_ref()` returns the client, to build
    /// requests with it.
    ///
    /// ```
    /// use tower::ServiceExt;
    /// use tower_outbound::{ApiKey, BoxError, Report, preset};
    ///
    /// # async fn call() -> Result<(), BoxError> {
    /// let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
    /// let mail = preset::email_delivery("https://mail.example.com")?
    ///     .with_api_key(ApiKey::new("s3cret")?)
    ///     .reqwest(client)?;
    ///
    /// let request = mail.get_ref().get_ref().post("https://mail.example.com/v1/resources").body("hello").build()?;
    /// let request = http::Request::<reqwest::Body>::try_from(request)?;
    /// let response = mail.clone().oneshot(request).await?;
    /// println!("{} {:?}", response.status(), Report::from_response(&response));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error as [`layer`](Self::layer) does.
    #[cfg_attr(docsrs, doc(cfg(feature = "reqwest")))]
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
        self.client.poll_ready(cx).map_err(|error| Error::from_service(error.without_url()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut call = Some(request::translate(request).map(|request| {
            let sent_to = self.may_redirect.then(|| request.url().clone());
            (self.client.call(request), sent_to, clock::now())
        }));
        Box::pin(poll_fn(move |cx| {
            let outcome = match &mut call {
                Some(Ok((pending, sent_to, since))) => match ready!(Pin::new(pending).poll(cx)) {
                    Ok(response) if sent_to.as_ref().is_some_and(|url| url != response.url()) => {
                        Err(error::followed())
                    }
                    Ok(response) => {
                        Ok(Response::<Content>::from(response).map(|body| body.map_err(without_url as _)))
                    }
                    Err(error) => Err(error::of(error, since.elapsed(), sent_to.is_some())),
                },
                _ => match call.take() {
                    Some(Err(error)) => Err(error),
                    _ => polled_after_completion(),
                },
            };
            call = None;
            Poll::Ready(outcome)
        }))
    }
}

fn without_url(error: ::reqwest::Error) -> BoxError {
    redact(error.without_url())
}

/// Shows nothing of the client, whose own shows its default headers and its proxies.
impl fmt::Debug for Reqwest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reqwest").field("may_redirect", &self.may_redirect).finish_non_exhaustive()
    }
}
