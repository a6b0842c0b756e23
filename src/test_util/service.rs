use std::{
    any::Any,
    fmt,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, request::Parts};
use http_body_util::BodyExt;
use tower_service::Service;

use super::{Arrivals, ScriptedResponse, scripted_response::Reads};
use crate::{
    body::Body,
    call::CallContext,
    clock::{self, Instant},
    error::BoxError,
};

/// Replaces a client and its server: returns scripted responses, records each request, and checks that callers follow
/// tower's contract.
///
/// ```
/// use tower::{Layer, ServiceExt};
/// use tower_outbound::{Body, retry::RetryLayer, test_util::ScriptedService};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let api = ScriptedService::new([503, 200]);
/// let service = RetryLayer::new().layer(api.clone());
/// let response = service.oneshot(http::Request::get("/v1").body(Body::empty())?).await?;
/// assert_eq!((response.status().as_u16(), api.calls()), (200, 2));
/// # Ok(())
/// # }
/// ```
///
/// # Default
///
/// The first request gets the first response, and so on in the order of arrival. The last response repeats. The service
/// is always ready. To limit concurrent calls, wrap the service in tower's `ConcurrencyLimit`.
///
/// # Panics
///
/// Panics if the service is called before `poll_ready` has returned ready, or if its script is empty.
///
/// # Clone
///
/// All clones share the script and the recorded requests. A clone is not ready, even if the original is.
///
/// # Cancellation
///
/// A dropped call stays recorded, and the next call gets the next response.
pub struct ScriptedService {
    script: Arc<Script>,
    ready: bool,
}

/// The state that all clones of a service and all its calls share.
struct Script {
    respond: Box<dyn Fn(&Seen) -> ScriptedResponse + Send + Sync>,
    seen: Mutex<Vec<Seen>>,
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl Script {
    fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the request. Returns its index in the record, and its response.
    fn respond(&self, head: Parts) -> (usize, ScriptedResponse) {
        let attempt = head.extensions.get::<CallContext>().map(CallContext::attempt);
        let mut all = self.seen();
        let index = all.len();
        let seen = Seen { number: index + 1, at: clock::now(), head, attempt, body: None, trailers: None };
        all.push(seen.clone());
        drop(all);
        (index, (self.respond)(&seen))
    }
}

impl ScriptedService {
    /// Creates a service that returns these responses in order.
    ///
    /// ```
    /// use tower_outbound::test_util::ScriptedService;
    ///
    /// let unavailable_once = ScriptedService::new([503, 200]);
    /// ```
    pub fn new(responses: impl IntoIterator<Item: Into<ScriptedResponse>>) -> Self {
        let responses: Vec<_> = responses.into_iter().map(Into::into).collect();
        Self::from_fn(move |seen| match responses.get(seen.number - 1).or(responses.last()) {
            Some(response) => response.clone(),
            None => panic!("the script has no response for {} {}", seen.head.method, seen.head.uri.path()),
        })
    }

    /// Creates a service that selects the response by the request, before the request's body is read.
    ///
    /// ```
    /// use tower_outbound::test_util::ScriptedService;
    ///
    /// let protected = ScriptedService::from_fn(|seen| match seen.header("authorization") {
    ///     Some("Bearer s3cret") => 200.into(),
    ///     _ => 401.into(),
    /// });
    /// ```
    pub fn from_fn(respond: impl Fn(&Seen) -> ScriptedResponse + Send + Sync + 'static) -> Self {
        let (seen, kept) = (Mutex::default(), Mutex::default());
        Self { script: Arc::new(Script { respond: Box::new(respond), seen, kept }), ready: false }
    }

    /// Returns all requests that have arrived so far, in the order of arrival.
    pub fn seen(&self) -> Vec<Seen> {
        self.script.seen().clone()
    }

    /// Returns the number of requests that have arrived.
    pub fn calls(&self) -> usize {
        self.script.seen().len()
    }

    /// Returns the arrival times of the requests.
    pub fn arrivals(&self) -> Arrivals {
        self.script.seen().iter().map(|seen| seen.at).collect()
    }

    /// Returns how many clones and unfinished calls of this service exist, including this instance.
    pub fn instances(&self) -> usize {
        Arc::strong_count(&self.script)
    }
}

impl Clone for ScriptedService {
    fn clone(&self) -> Self {
        Self { script: Arc::clone(&self.script), ready: false }
    }
}

impl fmt::Debug for ScriptedService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedService")
            .field("ready", &self.ready)
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}

impl<B> Service<Request<B>> for ScriptedService
where
    B: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (head, body) = request.into_parts();
        assert!(
            std::mem::take(&mut self.ready),
            "called before poll_ready returned ready: {} {}; before each call, poll_ready must return ready on the \
             called instance, and a clone of a ready instance is not ready",
            head.method,
            head.uri.path(),
        );
        let script = Arc::clone(&self.script);
        let (index, response) = script.respond(head);
        Box::pin(async move {
            match response.reads {
                Reads::Nothing => drop(body),
                Reads::Keeps => {
                    script.kept.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(body));
                }
                Reads::FirstFrame => _ = pin!(body).frame().await.transpose().map_err(Into::into)?,
                Reads::All => {
                    let read = body.collect().await.map_err(Into::into)?;
                    let trailers = read.trailers().cloned();
                    let seen = &mut script.seen()[index];
                    (seen.body, seen.trailers) = (Some(read.to_bytes()), trailers);
                }
            }
            response.into_result().await
        })
    }
}

/// A request that a [`ScriptedService`](super::ScriptedService) received.
///
/// `Debug` shows the names of the headers. It omits their values and the query, because both may contain keys.
/// [`head`](Self::head) contains everything.
#[derive(Clone)]
#[non_exhaustive]
pub struct Seen {
    /// The number of the request in the order of arrival, starting at 1.
    pub number: usize,
    /// The time of arrival on tokio's clock.
    pub at: Instant,
    /// The method, URI, version, headers and extensions.
    pub head: Parts,
    /// The number of the attempt within its call, starting at 1. `None` if no layer of this crate set it, for example
    /// because a server received the request over a connection.
    pub attempt: Option<u32>,
    /// The body. `None` until the body has been read completely.
    pub body: Option<Bytes>,
    /// The trailers after the body.
    pub trailers: Option<HeaderMap>,
}

impl Seen {
    /// Returns the value of a header, if it is present and text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seen")
            .field("number", &self.number)
            .field("at", &self.at)
            .field("attempt", &self.attempt)
            .field("method", &self.head.method)
            .field("path", &self.head.uri.path())
            .field("headers", &self.head.headers.keys().collect::<Vec<_>>())
            .field("body_bytes", &self.body.as_ref().map(Bytes::len))
            .field("trailers", &self.trailers.as_ref().map(|trailers| trailers.keys().collect::<Vec<_>>()))
            .finish_non_exhaustive()
    }
}
