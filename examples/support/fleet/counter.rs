use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, runtime::Builder, time::Instant};

/// The header by which a process says which one it is.
pub(super) const PROCESS: &str = "x-process";

/// The header by which it says when the request had its permit, by [`wall`].
pub(super) const LEFT: &str = "x-left";

/// The clock that all processes have in common.
#[allow(clippy::disallowed_methods, reason = "the one that is not this process's own")]
pub(super) fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A real hyper server on loopback that counts what arrives. On a thread of its own, which does nothing else.
#[derive(Debug, Clone)]
pub(crate) struct Counter {
    address: SocketAddr,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    /// How long ago it had its permit. What was put aside on its way, or here, by the operating system arrived some time
    /// in between.
    pub(crate) way: Duration,
    pub(crate) process: usize,
}

impl Counter {
    /// Until the program ends.
    pub(crate) fn start() -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let counter = Self { address: listener.local_addr()?, arrivals: Arc::default() };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let served = counter.clone();
        thread::Builder::new().name("counter".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                loop {
                    let Ok((stream, _)) = listener.accept().await else { continue };
                    let _ = stream.set_nodelay(true);
                    let served = served.clone();
                    let service = service_fn(move |request| {
                        served.note(&request);
                        async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }
                    });
                    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
                }
            });
        })?;
        Ok(counter)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// All so far, in the order of their arrival.
    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, request: &Request<Incoming>) {
        let (at, now) = (Instant::now(), wall());
        let number = |name| request.headers().get(name).and_then(|value| value.to_str().ok()?.parse().ok());
        let way = number(LEFT).map_or(Duration::ZERO, |left| now.saturating_sub(Duration::from_micros(left)));
        let process = number(PROCESS).and_then(|process| usize::try_from(process).ok());
        let arrival = Arrival { at, way, process: process.unwrap_or(usize::MAX) };
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
    }
}
