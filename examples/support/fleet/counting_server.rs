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

/// The name of the request header with the number of the sending process.
pub(super) const PROCESS: &str = "x-process";

/// The name of the request header with the time of the grant, in microseconds of [`wall_clock`].
pub(super) const GRANTED_AT: &str = "x-granted-at";

/// Reads the wall clock, which all processes share.
#[allow(clippy::disallowed_methods, reason = "tokio's clock differs between processes")]
pub(super) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A hyper server on loopback that records the arrival of each request. The server runs on a dedicated thread.
#[derive(Debug, Clone)]
pub(crate) struct CountingServer {
    address: SocketAddr,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    /// The interval between the grant and the arrival. The operating system may suspend the sender or the server, so
    /// the request arrived at some time in this interval.
    pub(crate) transit: Duration,
    pub(crate) process: usize,
}

impl CountingServer {
    /// Starts the server. The server runs until the program ends.
    pub(crate) fn start() -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let server = Self { address: listener.local_addr()?, arrivals: Arc::default() };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let accepting = server.clone();
        thread::Builder::new().name("counting-server".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                loop {
                    let Ok((stream, _)) = listener.accept().await else { continue };
                    let _ = stream.set_nodelay(true);
                    let recording = accepting.clone();
                    let service = service_fn(move |request| {
                        recording.record(&request);
                        async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }
                    });
                    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
                }
            });
        })?;
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the requests that have arrived so far, in the order of arrival.
    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record(&self, request: &Request<Incoming>) {
        let (at, now) = (Instant::now(), wall_clock());
        let number = |name| request.headers().get(name).and_then(|value| value.to_str().ok()?.parse().ok());
        let since_grant = |granted_at| now.saturating_sub(Duration::from_micros(granted_at));
        let transit = number(GRANTED_AT).map_or(Duration::ZERO, since_grant);
        let process = number(PROCESS).and_then(|process| usize::try_from(process).ok());
        let arrival = Arrival { at, transit, process: process.unwrap_or(usize::MAX) };
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
    }
}
