//! A stand-in for somebody else's service: a real hyper server on loopback, HTTP/1.1 and HTTP/2, that checks
//! the key, holds callers to the quota, fails as planned, and keeps a ledger of all that reached it.
//!
//! For the examples, and for tests: `#[path = "../examples/support/mod.rs"] mod support;`
#![allow(dead_code, unused_imports, reason = "each example and test uses its own part of it")]

mod answer;
mod ledger;

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
    answer::Scripted,
    ledger::{Ledger, Seen},
};

/// What the service is to do.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Stands in its answers as `service`.
    pub(crate) name: &'static str,
    /// `Authorization: Bearer <key>` is asked for, with 401 for anything else.
    pub(crate) key: String,
    /// Further headers that are asked for.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// At most so many arrivals in any window, those that were turned away counted.
    pub(crate) quota: Option<(usize, Duration)>,
    /// What goes wrong, and when; the first entry that fits counts.
    pub(crate) faults: Vec<(When, Scripted)>,
    /// The time from a request's head to its answer.
    pub(crate) latency: Duration,
}

/// Which requests a fault is for: they are numbered from 1 as they arrive, so that runs repeat.
#[derive(Debug, Clone, Copy)]
pub(crate) enum When {
    Nth(usize),
    Every(usize),
}

impl Plan {
    /// No quota, no faults, no latency.
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

    /// 200, unless something is amiss.
    fn answer(&self, ledger: &Ledger, seen: &Seen) -> Scripted {
        if let Some(pause) = self.quota.and_then(|(limit, window)| ledger.over(limit, window, seen.at)) {
            return Scripted::OverQuota { retry_after: pause };
        }
        let has = |name: &str, value: &str| seen.headers.get(name).is_some_and(|given| given == value);
        if !has("authorization", &format!("Bearer {}", self.key))
            || !self.headers.iter().all(|(name, value)| has(name, value))
        {
            return Scripted::Unauthorized;
        }
        self.faults.iter().find(|(when, _)| when.is(seen.number)).map_or(Scripted::Ok, |(_, answer)| *answer)
    }
}

impl When {
    fn is(self, number: usize) -> bool {
        match self {
            Self::Nth(nth) => number == nth,
            Self::Every(every) => number.checked_rem(every) == Some(0),
        }
    }
}

/// The responses of all stand-ins of this program, by status. Dropped requests count under 0.
static SERVED: Mutex<BTreeMap<u16, usize>> = Mutex::new(BTreeMap::new());

/// Returns what the stand-ins have served so far, for the summary of an interrupted program.
pub(crate) fn so_far() -> String {
    let served = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    format!("the server saw {} requests, by status: {served:?}", served.values().sum::<usize>())
}

/// The running service; it and its connections end when this is dropped.
#[derive(Debug)]
pub(crate) struct StandIn {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    plan: Plan,
    ledger: Mutex<Ledger>,
}

impl StandIn {
    pub(crate) async fn start(plan: Plan) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { plan, ledger: Mutex::default() });
        let server = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, server })
    }

    /// Such as `http://127.0.0.1:34567`.
    pub(crate) fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What has reached the service so far.
    pub(crate) fn ledger(&self) -> Ledger {
        self.shared.ledger().clone()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, and every connection with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        shared.ledger().connections += 1;
        while connections.try_join_next().is_some() {}
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(move |request| serve(Arc::clone(&shared), request));
            let builder = auto::Builder::new(TokioExecutor::new());
            // It ends in an error whenever the plan was to drop it.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn serve(shared: Arc<Shared>, request: Request<Incoming>) -> io::Result<answer::Response> {
    let (head, body) = request.into_parts();
    let (number, answer) = {
        let mut ledger = shared.ledger();
        let number = ledger.requests.len() + 1;
        let mut seen = Seen::new(number, Instant::now(), head);
        seen.answer = shared.plan.answer(&ledger, &seen);
        let answer = seen.answer;
        ledger.requests.push(seen);
        let status = answer.status().map_or(0, |status| status.as_u16());
        *SERVED.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
        (number, answer)
    };
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    shared.ledger().requests[number - 1].body = body;
    tokio::time::sleep(shared.plan.latency).await;
    shared.ledger().requests[number - 1].answered = Some(Instant::now());
    answer.response(shared.plan.name, number)
}
