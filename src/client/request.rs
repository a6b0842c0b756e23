use std::{
    fmt::{self, Write as _},
    future::IntoFuture,
    num::NonZeroU32,
    time::Duration,
};

use http::{HeaderValue, Method, Request, uri::PathAndQuery};
use percent_encoding::utf8_percent_encode;

use super::{error::ResponseError, response::ResponseFuture, service::Client};
use crate::{
    body::Body,
    call::{DeadlineSetting, RequestTimeout},
    clock,
    error::Error,
    headers,
    limit::{PermitCost, Priority},
    retry::RetryOverride,
    timeout::AttemptTimeoutOverride,
    uri::ENCODED,
};

/// A request of a [`Client`]. `.await` sends it and returns the [`Response`](super::Response).
///
/// ```no_run
/// use std::time::Duration;
/// use tower_outbound::{Client, Error};
///
/// # async fn call(client: Client) -> Result<(), Error> {
/// let response = client
///     .get("/search")
///     .query(&[("q", "a b"), ("page", "2")])
///     .header("accept", "application/json")
///     .timeout(Duration::from_secs(5))
///     .await?;
/// println!("{}", response.status());
/// # Ok(())
/// # }
/// ```
///
#[cfg_attr(
    feature = "json",
    doc = "[`fetch_json`](Self::fetch_json) sends the request and deserializes the response."
)]
#[cfg_attr(not(feature = "json"), doc = "`json` and `fetch_json` need the feature `json`.")]
///
/// # Errors
///
/// No setter returns an error. If a value is invalid, `.await` returns an [`Error`] with
/// [`is_invalid_request`](Error::is_invalid_request) for the first invalid value, and nothing is sent.
///
/// # Cancellation
///
/// Nothing is sent before the first `.await`. Dropping the future cancels the call, and nothing continues in the
/// background.
///
/// # Notes
///
/// The future of [`send`](Self::send) can be passed to `tokio::spawn` or `join_all`, because it is `Send` and owns its
/// data.
#[must_use = "a request is sent by `.await` or `send`"]
pub struct RequestBuilder {
    client: Client,
    request: Result<Request<Body>, Error>,
    timeout: Option<Duration>,
    is_idempotent: bool,
}

impl RequestBuilder {
    pub(super) fn new(client: &Client, method: Method, path: &str) -> Self {
        let request = client.inner.base_url.join(path).map(|uri| {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = uri;
            *request.method_mut() = method;
            request
        });
        Self { client: client.clone(), request, timeout: None, is_idempotent: false }
    }

    /// Adds these pairs to the query of the URL. Names and values are percent-encoded.
    ///
    /// ```
    /// # async fn call(client: tower_outbound::Client) -> Result<(), tower_outbound::Error> {
    /// // Sends `/search?q=a%20b%26c`.
    /// client.get("/search").query(&[("q", "a b&c")]).await?;
    /// // Sends `/items?kind=new&limit=10&offset=20`.
    /// client.get("/items?kind=new").query(&[("limit", 10), ("offset", 20)]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn query<K: AsRef<str>, V: fmt::Display>(self, pairs: &[(K, V)]) -> Self {
        self.change(|client, request| {
            let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
            let mut joined = String::with_capacity(path.len() + 32 * pairs.len());
            joined.push_str(path);
            let mut separator = if request.uri().query().is_some() { '&' } else { '?' };
            for (name, value) in pairs {
                joined.push(std::mem::replace(&mut separator, '&'));
                joined.extend(utf8_percent_encode(name.as_ref(), ENCODED));
                joined.push('=');
                write!(Encoder(&mut joined), "{value}").map_err(|_| {
                    Error::invalid_request(format!(
                        "query parameter `{}`: its value cannot be formatted",
                        name.as_ref()
                    ))
                })?;
            }
            let path = PathAndQuery::try_from(joined).map_err(Error::invalid_request)?;
            *request.uri_mut() = client.inner.base_url.with_path(path)?;
            Ok(())
        })
    }

    /// Adds a header. A [default header](crate::stack::StackBuilder::with_header) is sent only if the request has no
    /// header of the same name. `host`, `content-length` and `transfer-encoding` must
    /// [match the URL and the body](crate::stack#headers).
    ///
    /// ```
    /// # async fn call(client: tower_outbound::Client) -> Result<(), tower_outbound::Error> {
    /// client.get("/report").header("accept", "text/csv").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn header<K, V>(self, name: K, value: V) -> Self
    where
        K: AsRef<str>,
        V: TryInto<HeaderValue>,
    {
        let field = headers::parse(name, value);
        self.change(|_, request| {
            let (name, value) = field.map_err(Error::invalid_request)?;
            headers::append(request.headers_mut(), name, value)
        })
    }

    /// Sets the body: bytes, text or a [`Body`].
    ///
    /// A request with a body has `content-type: application/json`, unless the request itself or
    /// [`StackBuilder::with_header`](crate::stack::StackBuilder::with_header) sets another `content-type`.
    pub fn body(self, body: impl Into<Body>) -> Self {
        let body = body.into();
        self.change(|_, request| {
            *request.body_mut() = body;
            Ok(())
        })
    }

    /// Sets the body to one that `make` creates for each attempt, such as a file that is streamed. A retry then needs
    /// no recording, so the body may have any size. See [`Body::from_fn`] for the errors and the length of the body.
    ///
    /// ```no_run
    /// # use tower_outbound::Body;
    /// # async fn upload(client: tower_outbound::Client, open: fn() -> Body) -> Result<(), tower_outbound::Error> {
    /// let timeout = std::time::Duration::from_secs(3600);
    /// let response = client.put("/files/7").timeout(timeout).body_with(move || open()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`guide::uploads_downloads`](crate::guide::uploads_downloads) shows a program that uploads a file.
    pub fn body_with<B: Into<Body>>(self, make: impl Fn() -> B + Send + Sync + 'static) -> Self {
        self.body(Body::from_fn(make))
    }

    /// Declares this request idempotent, whatever its method. The request is then retried even if the server may have
    /// processed it. Use it for a POST that only reads, such as a search.
    pub fn idempotent(self) -> Self {
        Self { is_idempotent: true, ..self }
    }

    /// Sets how many permits of the limiter this request takes. The default is 1. A cost of 0 is invalid.
    ///
    /// The limiter refuses a cost above the burst of its quota. The default burst is a tenth of the quota's limit: see
    /// [`Quota::with_burst`](crate::Quota::with_burst). A [sliding window](crate::limit::LocalLimiter::sliding_window)
    /// has no burst, so it refuses only a cost above the limit.
    pub fn cost(self, permits: u32) -> Self {
        self.change(|_, request| {
            let permits = NonZeroU32::new(permits)
                .ok_or_else(|| Error::invalid_request("cost `0`: expected at least 1 permit"))?;
            request.extensions_mut().insert(PermitCost(permits));
            Ok(())
        })
    }

    /// Sets the priority of this request in the limiter's queue. Default: that of
    /// [`StackBuilder::with_priority`](crate::stack::StackBuilder::with_priority), otherwise [`Priority::Normal`]. A
    /// function set with [`RateLimitLayer::with_priority`](crate::limit::RateLimitLayer::with_priority) replaces it.
    pub fn priority(self, priority: Priority) -> Self {
        self.extension(priority)
    }

    /// Adds a value to the extensions of the request. The value is data for a custom layer, or a setting for one of
    /// this crate's layers.
    ///
    /// ```
    /// use tower_outbound::retry::RetryOverride;
    ///
    /// # async fn call(client: tower_outbound::Client) -> Result<(), tower_outbound::Error> {
    /// client.get("/health").extension(RetryOverride::new().without_retries()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn extension<T: Clone + Send + Sync + 'static>(self, value: T) -> Self {
        self.change(|_, request| {
            request.extensions_mut().insert(value);
            Ok(())
        })
    }

    /// Sends the request, like `.await`.
    ///
    /// The time limits of the call count from `send`, and not from the first poll of the future. To start many calls
    /// over time, collect the builders instead of the futures, and send each one in its turn. With an [outer
    /// layer](crate::stack::StackBuilder::with_outer_layer), only [`timeout`](Self::timeout) counts from `send`.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] if a setter was invalid or no response arrived. Every HTTP status is returned as `Ok`:
    /// [`Response::error_for_status`](super::Response::error_for_status) converts a status other than 2xx to an error.
    #[inline]
    pub fn send(self) -> ResponseFuture {
        let mut request = self.request;
        if let (true, Ok(request)) = (self.is_idempotent, &mut request) {
            let retry = request.extensions().get().copied().unwrap_or_else(RetryOverride::new);
            request.extensions_mut().insert(retry.with_idempotent());
        }
        if let (Some(limit), Ok(request)) = (self.timeout, &mut request) {
            let timeout: RequestTimeout =
                (clock::after(clock::now(), limit), DeadlineSetting::RequestTimeout);
            request.extensions_mut().insert(timeout);
        }
        ResponseFuture::new(self.client, request)
    }

    /// Sends the request, and returns the body of a 2xx response as text.
    ///
    /// ```no_run
    /// # async fn call(client: tower_outbound::Client) -> Result<(), tower_outbound::client::ResponseError> {
    /// println!("{}", client.get("/status").fetch_text().await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - no response arrived,
    /// - the status is not a 2xx,
    /// - the body fails or is larger than [`Response::MAX_BODY`](super::Response::MAX_BODY).
    ///
    /// Retries an idempotent request if the body breaks: see [`Response`](super::Response#retries).
    pub async fn fetch_text(self) -> Result<String, ResponseError> {
        self.send().await?.error_for_status().await?.text().await
    }

    /// Changes the request, unless an earlier change has failed.
    pub(super) fn change(
        mut self,
        change: impl FnOnce(&Client, &mut Request<Body>) -> Result<(), Error>,
    ) -> Self {
        if let Ok(request) = &mut self.request {
            if let Err(error) = change(&self.client, request) {
                self.request = Err(error);
            }
        }
        self
    }
}

/// Adds the percent-encoded text of a value to a query.
struct Encoder<'a>(&'a mut String);

impl fmt::Write for Encoder<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend(utf8_percent_encode(text, ENCODED));
        Ok(())
    }
}

impl IntoFuture for RequestBuilder {
    type Output = <ResponseFuture as Future>::Output;
    type IntoFuture = ResponseFuture;

    #[inline]
    fn into_future(self) -> ResponseFuture {
        self.send()
    }
}

/// Shows only the method and the origin, because the path and the headers may contain secrets.
impl fmt::Debug for RequestBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = self.request.as_ref().ok().map(|request| request.method());
        let mut debug = f.debug_struct("RequestBuilder");
        debug.field("method", &method).field("client", &self.client).finish_non_exhaustive()
    }
}

/// Setters of the time limits, which replace those of the client for this request, whether they are longer or shorter.
/// See [time limits of one call](crate::guide::timeouts#time-limits-of-one-call).
impl RequestBuilder {
    /// Limits the time of this call, counted from `.await` or [`send`](Self::send). The limit covers queueing, attempts
    /// and backoff until the response headers arrive. It also covers reading the body with the methods of
    /// [`Response`](super::Response).
    ///
    /// A [`Deadline`](crate::call::Deadline) in the extensions still applies if it is earlier. The [attempt
    /// timeout](Self::attempt_timeout), 10 s by default, still limits each attempt, but [not a long
    /// upload](crate::guide::uploads_downloads#upload).
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Limits the time of each attempt of this request, for one slow endpoint of a service whose other endpoints are
    /// fast. A limit of zero is invalid. The total timeout of the client or [`timeout`](Self::timeout) still limits the
    /// call.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # async fn call(client: tower_outbound::Client) -> Result<(), tower_outbound::Error> {
    /// client.get("/export").attempt_timeout(Duration::from_secs(45)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn attempt_timeout(self, limit: Duration) -> Self {
        self.change(|_, request| {
            let limit = AttemptTimeoutOverride::new(limit).map_err(Error::invalid_request)?;
            request.extensions_mut().insert(limit);
            Ok(())
        })
    }
}

/// Percent-encodes a string as one segment of a path. Use it for an untrusted string, such as an id in an inbound
/// request. Without it, the string could add a query or select another path.
///
/// ```
/// use tower_outbound::{Client, Error, client::PathSegment};
///
/// # async fn call(orders: Client) -> Result<(), Error> {
/// let id = "7/cancel?now=1";
/// // Sends `/orders/7%2Fcancel%3Fnow%3D1`.
/// orders.get(format!("/orders/{}", PathSegment(id))).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Notes
///
/// - The segments `.` and `..` cannot be encoded, so the client rejects a path that contains them.
/// - An empty string produces an empty segment, as in `/orders/`. Reject an empty string if that path has another
///   meaning.
#[derive(Debug, Clone, Copy)]
pub struct PathSegment<'a>(pub &'a str);

impl fmt::Display for PathSegment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        utf8_percent_encode(self.0, ENCODED).fmt(f)
    }
}
