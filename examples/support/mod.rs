//! A mock of a third-party service: a hyper server on loopback that speaks HTTP/1.1 and HTTP/2.
//!
//! The mock server checks the key, enforces a quota, injects the configured faults, and records every request.
//!
//! Examples and tests include this module with `#[path = "../examples/support/mod.rs"] mod support;`.
#![allow(dead_code, unused_imports, reason = "each example and test uses a part of it")]

mod request_log;
mod response;

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http_body_util::BodyExt;
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::TcpListener,
    task::{JoinHandle, JoinSet},
    time::Instant,
};

pub(crate) use self::{
    request_log::{ReceivedRequest, RequestLog},
    response::MockResponse,
};

/// The configuration of a mock server.
#[derive(Debug, Clone)]
pub(crate) struct MockConfig {
    /// The value of the field `service` in the body of each response.
    pub(crate) name: &'static str,
    /// The bearer token that the `Authorization` header must contain. A request without this token gets a 401.
    pub(crate) key: String,
    /// Further required headers with their values. A request without one of these headers gets a 401.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// The quota: the largest number of requests in any window, and the length of the window. Rejected requests count,
    /// too.
    pub(crate) quota: Option<(usize, Duration)>,
    /// The injected faults. A request gets the first fault whose trigger matches.
    pub(crate) faults: Vec<(Trigger, MockResponse)>,
    /// The delay between the end of a request's body and the response.
    pub(crate) latency: Duration,
}

/// Selects the requests that get a fault, by the number of the request.
///
/// The requests are numbered from 1 in the order of arrival, so that every run has the same faults.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trigger {
    Nth(usize),
    EveryNth(usize),
}

impl MockConfig {
    /// Creates a configuration without quota, faults and latency.
    pub(crate) fn new(name: &'static str, key: impl Into<String>) -> Self {
        Self {
            name,
            key: key.into(),
            headers: Vec::new(),
            quota: None,
            faults: Vec::new(),
            latency: Duration::ZERO,
        }
    }

    /// Returns the response to the request: 200, unless the quota is exceeded, a header is wrong, or a fault is
    /// triggered.
    fn response(&self, log: &RequestLog, request: &ReceivedRequest) -> MockResponse {
        let over_quota = |(limit, window)| log.retry_after_if_over(limit, window, request.at);
        if let Some(retry_after) = self.quota.and_then(over_quota) {
            return MockResponse::OverQuota { retry_after };
        }
        let has = |name: &str, value: &str| request.headers.get(name).is_some_and(|given| given == value);
        if !has("authorization", &format!("Bearer {}", self.key))
            || !self.headers.iter().all(|(name, value)| has(name, value))
        {
            return MockResponse::Unauthorized;
        }
        let fault = self.faults.iter().find(|(trigger, _)| trigger.matches(request.number));
        fault.map_or(MockResponse::Ok, |(_, response)| *response)
    }
}

impl Trigger {
    fn matches(self, number: usize) -> bool {
        match self {
            Self::Nth(nth) => number == nth,
            Self::EveryNth(every) => number.checked_rem(every) == Some(0),
        }
    }
}

/// The number of responses of all mock servers of this program, by status. A dropped request counts as status 0.
static SERVED: Mutex<BTreeMap<u16, usize>> = Mutex::new(BTreeMap::new());

/// Describes the requests that all mock servers have received so far, for the summary of an interrupted program.
pub(crate) fn partial_summary() -> String {
    let served = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    format!("the server received {} requests, by status: {served:?}", served.values().sum::<usize>())
}

/// A running mock server. Dropping this value stops the server and closes its connections.
#[derive(Debug)]
pub(crate) struct MockServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    config: MockConfig,
    log: Mutex<RequestLog>,
}

impl MockServer {
    pub(crate) async fn start(config: MockConfig) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { config, log: Mutex::default() });
        let server = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, server })
    }

    /// Returns the server's base URL, such as `http://127.0.0.1:34567`.
    pub(crate) fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the requests that have arrived so far.
    pub(crate) fn request_log(&self) -> RequestLog {
        self.shared.log().clone()
    }
}

impl Drop for MockServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, RequestLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropping the `JoinSet` together with this task closes every connection.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        shared.log().connections += 1;
        while connections.try_join_next().is_some() {}
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(move |request| serve(Arc::clone(&shared), request));
            let builder = auto::Builder::new(TokioExecutor::new());
            // The result is ignored, because a fault that drops the connection causes an error.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn serve(shared: Arc<Shared>, request: Request<Incoming>) -> io::Result<response::Response> {
    let (head, body) = request.into_parts();
    let (number, response) = {
        let mut log = shared.log();
        let number = log.requests.len() + 1;
        let mut received = ReceivedRequest::new(number, Instant::now(), head);
        received.response = shared.config.response(&log, &received);
        let response = received.response;
        log.requests.push(received);
        let status = response.status().map_or(0, |status| status.as_u16());
        *SERVED.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
        (number, response)
    };
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    shared.log().requests[number - 1].body = body;
    tokio::time::sleep(shared.config.latency).await;
    shared.log().requests[number - 1].responded_at = Some(Instant::now());
    response.into_http(shared.config.name, number)
}
