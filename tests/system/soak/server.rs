//! The servers of all APIs, on one thread. Each connection uses HTTP/2 or HTTP/1.1, as negotiated by ALPN. Connections
//! and responses have random faults until the recovery phase.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Method, Request};
use http_body_util::BodyExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{Notify, oneshot},
    time::{sleep, timeout},
};
use tower_outbound::{BoxError, transport::TransportConfig};

use super::{
    api::APIS,
    history::History,
    key_store::{KeyStatus, KeyStore},
    rng::Rng,
};
use crate::support::{
    certificate::{certificate, trusting, wire},
    server::{Reply, Wire, cut_off, reply, stalled},
};

/// The running servers of all APIs. Dropping this value stops the servers.
pub(crate) struct Server {
    addresses: Vec<SocketAddr>,
    pub(crate) key_stores: Vec<Arc<KeyStore>>,
    /// A transport that closes idle connections soon, so that clients often open new ones.
    pub(crate) transport: TransportConfig,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The server of one API. All its connections share this data.
#[derive(Clone)]
struct ApiServer {
    api: usize,
    seed: u64,
    keys: Arc<KeyStore>,
    history: Arc<History>,
    /// The ways in which a connection negotiates its protocol.
    wires: [Wire; 3],
}

impl Server {
    pub(crate) fn start(seed: u64, history: &Arc<History>) -> Self {
        // API 1 reads its keys from a file. The other APIs refresh their keys through a provider.
        let key_stores: Vec<_> = (0..APIS).map(|api| KeyStore::new(api, seed, api == 1)).collect();
        let certificate = certificate();
        let wires = [&["h2", "http/1.1"][..], &["http/1.1"], &[]].map(|names| wire(&certificate, names));
        let (stop, stopped) = oneshot::channel();
        let (address_sender, address_receiver) = mpsc::channel();
        let (server_keys, history) = (key_stores.clone(), Arc::clone(history));
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let mut addresses = vec![];
                for (api, keys) in server_keys.into_iter().enumerate() {
                    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                    addresses.push(listener.local_addr().unwrap());
                    let (history, wires) = (Arc::clone(&history), wires.clone());
                    tokio::spawn(ApiServer { api, seed, keys, history, wires }.accept(listener));
                }
                address_sender.send(addresses).unwrap();
                let _ = stopped.await;
            });
        });
        let transport = trusting(&certificate).with_idle_timeout(Duration::from_millis(700));
        let addresses = address_receiver.recv().unwrap();
        Self { addresses, key_stores, transport, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn url(&self, api: usize) -> String {
        format!("https://{}", self.addresses[api])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Behaviour {
    Success,
    /// A 200 response after up to 300 ms.
    SlowSuccess,
    ErrorStatus,
    /// A 503 response that requests a delay in milliseconds.
    Unavailable,
    /// A 429 response that requests a delay of one second.
    Throttled,
    /// A 429 response that requests a delay of 30 years.
    ThrottledForYears,
    /// A 200 response whose headers report that no permits remain for one second.
    NoPermitsLeft,
    NoResponse,
    /// The connection ends with a reset, or with garbage.
    EndOfConnection,
    TruncatedBody,
    StalledBody,
    RefusedStream,
    RetryRequested,
}

/// The behaviours, each with its relative frequency.
const BEHAVIOURS: &[(u64, Behaviour)] = &[
    (640, Behaviour::Success),
    (70, Behaviour::SlowSuccess),
    (60, Behaviour::ErrorStatus),
    (5, Behaviour::Unavailable),
    (1, Behaviour::Throttled),
    (2, Behaviour::ThrottledForYears),
    (2, Behaviour::NoPermitsLeft),
    (20, Behaviour::NoResponse),
    (55, Behaviour::EndOfConnection),
    (30, Behaviour::TruncatedBody),
    (15, Behaviour::StalledBody),
    (20, Behaviour::RefusedStream),
    (15, Behaviour::RetryRequested),
];

impl ApiServer {
    async fn accept(self, listener: TcpListener) {
        for number in 0.. {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let rng = Rng::new(self.seed, "connection", number << 8 | self.api as u64);
            tokio::spawn(self.clone().serve(stream, rng));
        }
    }

    async fn serve(self, mut stream: TcpStream, mut rng: Rng) {
        stream.set_nodelay(true).unwrap();
        let has_fault = !self.history.is_recovering();
        match rng.below(100) {
            0..3 if has_fault => return stream.set_zero_linger().unwrap(),
            3..5 if has_fault => return drop(stream.write_all(&[0xff; 512]).await),
            5..12 if has_fault => sleep(rng.millis(20, 250)).await,
            _ => {}
        }
        // The same socket, for a fault below TLS.
        let stream = stream.into_std().unwrap();
        let raw = TcpStream::from_std(stream.try_clone().unwrap()).unwrap();
        let Wire::Tls(acceptor) = &self.wires[rng.choose_weighted(&[(45, 0), (45, 1), (10, 2)])] else {
            unreachable!("all servers use TLS")
        };
        let Ok(stream) = acceptor.accept(TcpStream::from_std(stream).unwrap()).await else { return };
        let fault = Arc::new(Notify::new());
        let (server, inject) = (self.clone(), Arc::clone(&fault));
        let service = service_fn(move |request| server.clone().respond(request, Arc::clone(&inject)));
        let builder = auto::Builder::new(TokioExecutor::new());
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            // The result is ignored, because the checks cover only what the client observes.
            _ = connection.as_mut() => return,
            () = fault.notified() => {
                let _ = if rng.chance(500) { raw.set_zero_linger() } else { raw.try_write(&[0xfe; 64]).map(drop) };
                return;
            }
            () = sleep(rng.millis(200, 1_500)) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = timeout(Duration::from_secs(2), connection).await;
    }

    /// Checks the key of the request, and responds with a random behaviour. In the recovery phase, the behaviour is
    /// always `Success`.
    async fn respond(self, request: Request<Incoming>, fault: Arc<Notify>) -> Result<Reply, BoxError> {
        let (history, method) = (&self.history, request.method().clone());
        let call: u64 = number(request.headers(), "x-call");
        let key_status = key(&request).map_or(KeyStatus::Foreign, |key| self.keys.status(key));
        if key_status == KeyStatus::Foreign {
            history.add_violation(format!("API {}: call {call} has no key or a foreign one", self.api));
        }
        if key_status == KeyStatus::Revoked {
            return Ok(reply(401, ""));
        }
        let attempt: u64 = number(request.headers(), "x-attempt");
        let mut rng = Rng::new(self.seed, "request", call << 8 | attempt);
        let behaviour =
            if history.is_recovering() { Behaviour::Success } else { rng.choose_weighted(BEHAVIOURS) };
        let is_unprocessed = matches!(
            behaviour,
            Behaviour::RefusedStream | Behaviour::Throttled | Behaviour::ThrottledForYears
        );
        if method == Method::POST && !request.headers().contains_key("idempotency-key") && !is_unprocessed {
            history.process_once(call);
        }
        if method != Method::GET && rng.chance(900) {
            let _ = timeout(Duration::from_secs(1), request.into_body().collect()).await;
        }
        if !history.is_recovering() {
            sleep(rng.millis(0, 15)).await;
        }
        Ok(match behaviour {
            Behaviour::Success => reply(200, vec![b'x'; rng.below(8_000) as usize]),
            Behaviour::SlowSuccess => {
                sleep(rng.millis(50, 300)).await;
                reply(200, "late")
            }
            Behaviour::ErrorStatus => reply(rng.choose(&[500, 502, 503, 504, 408, 404]), ""),
            Behaviour::Unavailable => {
                with_header(reply(503, ""), "retry-after-ms", &rng.millis(150, 400).as_millis().to_string())
            }
            Behaviour::Throttled => with_header(reply(429, ""), "retry-after", "1"),
            Behaviour::ThrottledForYears => with_header(reply(429, ""), "retry-after", "946080000"),
            Behaviour::NoPermitsLeft => with_header(reply(200, ""), "ratelimit", "\"soak\";r=0;t=1"),
            // This delay is longer than the attempt timeout.
            Behaviour::NoResponse => {
                sleep(Duration::from_secs(2)).await;
                reply(200, "")
            }
            Behaviour::EndOfConnection => {
                fault.notify_one();
                std::future::pending().await
            }
            Behaviour::TruncatedBody => cut_off(200),
            Behaviour::StalledBody => stalled(200),
            Behaviour::RefusedStream => return Err(h2::Error::from(h2::Reason::REFUSED_STREAM).into()),
            Behaviour::RetryRequested => with_header(reply(409, ""), "x-should-retry", "true"),
        })
    }
}

/// Parses a header with a number, which every request of this test has.
fn number(headers: &HeaderMap, name: &str) -> u64 {
    headers[name].to_str().unwrap().parse().unwrap()
}

/// Returns the key from any place where one of the APIs expects it.
fn key(request: &Request<Incoming>) -> Option<&str> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let bearer = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let query = || request.uri().query()?.split('&').find_map(|field| field.strip_prefix("key="));
    bearer.or(header("x-api-key")).or_else(query)
}

fn with_header(mut response: Reply, name: &'static str, value: &str) -> Reply {
    response.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
    response
}
