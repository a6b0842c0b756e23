//! The servers: hyper on a simulated host, with faults in responses and connections.

use std::{
    convert::Infallible,
    error::Error as StdError,
    io,
    pin::pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    rt::{Read, Write},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rcgen::{CertifiedKey, KeyPair};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};
use tower_outbound::BoxError;
use turmoil::net::TcpListener;

use super::{
    history::{Arrival, History, Link},
    keys::{KeyStatus, Keys},
    network::server_name,
    plan::{HEALED, LONGEST_PAUSE, Plan, Protocol, SERVERS},
    rng::Rng,
};

type ServerResponse = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// The certificate of all servers.
pub(crate) static CERTIFICATE: LazyLock<CertifiedKey<KeyPair>> = LazyLock::new(|| {
    rcgen::generate_simple_self_signed((0..SERVERS).map(server_name).collect::<Vec<_>>()).unwrap()
});

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    Success,
    /// The response headers arrive after up to three seconds.
    SlowHeaders,
    SlowBody,
    /// The body breaks after its first part.
    BrokenBody,
    StalledBody,
    /// A 503 without `Retry-After`.
    Failure,
    /// A 503 with `Retry-After`.
    Unavailable,
    /// A 429 with `Retry-After`.
    Throttled,
    /// A response before the body of the request was read.
    EarlyResponse,
    NoResponse,
    /// The connection ends without a response.
    Reset,
    /// HTTP/2 only: the stream is refused.
    RefusedStream,
    /// The server ends the connection after this response. Over HTTP/2, it sends GOAWAY.
    GoAway,
}

const BEHAVIOURS: &[(u64, Behaviour)] = &[
    (600, Behaviour::Success),
    (60, Behaviour::SlowHeaders),
    (50, Behaviour::SlowBody),
    (30, Behaviour::BrokenBody),
    (15, Behaviour::StalledBody),
    (30, Behaviour::Failure),
    (10, Behaviour::Unavailable),
    (10, Behaviour::Throttled),
    (20, Behaviour::EarlyResponse),
    (15, Behaviour::NoResponse),
    (25, Behaviour::Reset),
    (40, Behaviour::RefusedStream),
    (30, Behaviour::GoAway),
];

/// A server. Its clones share the number of connections, which grows also when the server restarts.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) number: usize,
    pub(crate) plan: Arc<Plan>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) history: Arc<History>,
    pub(crate) connections: Arc<AtomicU64>,
    /// Closes the connections in order before the host crashes, because a runtime drops its tasks in any order.
    pub(crate) stop: Arc<Notify>,
}

/// What the requests of one connection share.
struct ConnectionState {
    reset: Notify,
    go_away: Notify,
    in_progress: AtomicUsize,
    used: Notify,
}

impl Server {
    pub(crate) async fn run(self) -> turmoil::Result {
        let listener = TcpListener::bind("0.0.0.0:443").await?;
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = self.stop.notified() => break,
                accepted = listener.accept() => {
                    let number = self.connections.fetch_add(1, Relaxed);
                    connections.spawn(self.clone().serve(number, accepted?.0));
                }
            }
        }
        connections.abort_all();
        std::future::pending().await
    }

    fn protocol(&self) -> Protocol {
        self.plan.protocols[self.number]
    }

    fn is_healed(&self) -> bool {
        self.history.now() >= HEALED
    }

    async fn serve(self, number: u64, stream: turmoil::net::TcpStream) {
        let mut rng = Rng::new(self.plan.seed, "connection", number << 8 | self.number as u64);
        if !self.is_healed() {
            match rng.below(100) {
                0..3 => {
                    return self
                        .history
                        .log(format_args!("server-{} resets connection {number}", self.number));
                }
                // A client times out before this connection speaks.
                3..5 => self.stay_silent(Duration::from_secs(3)).await,
                5..10 => self.stay_silent(rng.millis(10, 900)).await,
                _ => {}
            }
        }
        if self.protocol().is_tls() {
            if let Ok(stream) = acceptor(self.protocol().is_http2()).accept(stream).await {
                self.serve_http(number, rng, TokioIo::new(stream)).await;
            }
        } else {
            self.serve_http(number, rng, TokioIo::new(stream)).await;
        }
    }

    /// Reads nothing for this time. Packets that arrived meanwhile seem to arrive at its end.
    async fn stay_silent(&self, time: Duration) {
        sleep(time).await;
        self.history.records().releases.push(self.history.now());
    }

    async fn serve_http(self, number: u64, mut rng: Rng, stream: impl Read + Write + Unpin + Send + 'static) {
        let state = Arc::new(ConnectionState {
            reset: Notify::new(),
            go_away: Notify::new(),
            in_progress: AtomicUsize::new(0),
            used: Notify::new(),
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new());
        builder.http2().timer(TokioTimer::new()).max_concurrent_streams(self.plan.max_streams);
        let builder = if self.protocol().is_http2() { builder.http2_only() } else { builder.http1_only() };
        let (server, shared) = (self.clone(), Arc::clone(&state));
        let service = service_fn(move |request| server.clone().respond(request, Arc::clone(&shared)));
        let mut connection = pin!(builder.serve_connection(stream, service));
        // Some servers close idle connections without GOAWAY.
        let is_polite = rng.chance(500);
        // After the faults, the server closes no connection, because a POST may be lost on a closing one.
        let ends = Instant::now() + rng.millis(500, 20_000);
        let is_over = self.history.now() + (ends - Instant::now()) >= HEALED;
        let lifetime = sleep_until(if is_over { Instant::now() + Duration::from_secs(3600) } else { ends });
        let idle = sleep(self.plan.server_idle_timeout);
        let (mut lifetime, mut idle) = (pin!(lifetime), pin!(idle));
        let mut is_ending = false;
        loop {
            let reason = tokio::select! {
                biased;
                _ = connection.as_mut() => return,
                () = state.reset.notified() => {
                    return self.history.log(format_args!("server-{} resets connection {number}", self.number));
                }
                () = state.used.notified() => {
                    idle.as_mut().reset(Instant::now() + self.plan.server_idle_timeout);
                    continue;
                }
                () = state.go_away.notified(), if !is_ending => "go away",
                () = lifetime.as_mut(), if !is_ending => "end of its life",
                () = idle.as_mut(), if !is_ending => {
                    if state.in_progress.load(Relaxed) > 0 || self.is_healed() {
                        idle.as_mut().reset(Instant::now() + self.plan.server_idle_timeout);
                        continue;
                    }
                    if !is_polite {
                        return self.history.log(format_args!("server-{} drops idle connection {number}", self.number));
                    }
                    "idle"
                }
            };
            is_ending = true;
            self.history.log(format_args!("server-{} ends connection {number}: {reason}", self.number));
            connection.as_mut().graceful_shutdown();
        }
    }

    async fn respond(
        self,
        request: Request<Incoming>,
        state: Arc<ConnectionState>,
    ) -> Result<ServerResponse, BoxError> {
        let _in_progress = InProgress::new(&state);
        let headers = request.headers();
        let link = Link { client: number(headers, "x-client"), server: self.number };
        let (call, attempt): (usize, u32) = (number(headers, "x-call"), number(headers, "x-attempt"));
        let authorization = headers.get("authorization").map_or("", |value| value.to_str().unwrap());
        let key = self.keys.status(link, authorization);
        if key == KeyStatus::Foreign {
            self.history.violate(format_args!("{link}: call {call} has no key or a foreign one"));
        }
        let mut rng = Rng::new(self.plan.seed, "request", (call as u64) << 8 | u64::from(attempt));
        let mut behaviour = rng.choose_weighted(BEHAVIOURS);
        if self.is_healed() {
            behaviour = Behaviour::Success;
        }
        if behaviour == Behaviour::RefusedStream && !self.protocol().is_http2() {
            behaviour = Behaviour::Failure;
        }
        let is_rejected = key == KeyStatus::Revoked;
        let is_unread = is_rejected || matches!(behaviour, Behaviour::RefusedStream | Behaviour::Throttled);
        let index = {
            let at = self.history.now();
            let mut records = self.history.records();
            records.arrivals.push(Arrival {
                link,
                call,
                attempt,
                request_id: headers
                    .get("x-request-id")
                    .map_or_else(String::new, |id| id.to_str().unwrap().into()),
                permitted_at: Duration::from_nanos(number(headers, "x-permitted-at")),
                at,
                may_be_processed: !is_unread,
                is_read: false,
                status: None,
                length: 0,
            });
            records.arrivals.len() - 1
        };
        let what = if is_rejected { "RevokedKey".to_owned() } else { format!("{behaviour:?}") };
        self.history.log(format_args!("{link}: call {call}.{attempt} arrived: {what}"));
        let response = if is_rejected {
            Ok(full(401, 0))
        } else {
            self.behave(behaviour, (request, index), &state, &mut rng).await
        };
        if let Ok(response) = &response {
            self.history.log(format_args!("{link}: call {call}.{attempt} gets {}", response.status()));
            let mut records = self.history.records();
            let arrival = &mut records.arrivals[index];
            arrival.status = Some(response.status().as_u16());
            arrival.length = number(response.headers(), "x-length");
        }
        response
    }

    async fn behave(
        &self,
        behaviour: Behaviour,
        (request, index): (Request<Incoming>, usize),
        state: &ConnectionState,
        rng: &mut Rng,
    ) -> Result<ServerResponse, BoxError> {
        match behaviour {
            Behaviour::Throttled => return Ok(with_pause(full(429, 20), rng)),
            Behaviour::EarlyResponse => return Ok(full(413, 20)),
            Behaviour::RefusedStream => return Err(h2::Error::from(h2::Reason::REFUSED_STREAM).into()),
            _ => {}
        }
        request.into_body().collect().await?;
        self.history.records().arrivals[index].is_read = true;
        sleep(rng.millis(0, 50)).await;
        let length = rng.choose(&[0, 10, 5_000, 100_000]);
        Ok(match behaviour {
            Behaviour::SlowHeaders => {
                sleep(rng.millis(100, 3_000)).await;
                full(200, length)
            }
            Behaviour::SlowBody => in_parts(rng.below(5) as usize + 2, rng.millis(10, 600), None),
            Behaviour::BrokenBody => {
                let mut response = in_parts(1, rng.millis(0, 50), Some(false));
                // Without this length, HTTP/1.1 sends chunks, and the last one is missing.
                if rng.chance(500) {
                    response.headers_mut().insert("content-length", 2_000.into());
                }
                response
            }
            Behaviour::StalledBody => in_parts(1, rng.millis(0, 50), Some(true)),
            Behaviour::Failure => full(rng.choose(&[500, 502, 503]), 50),
            Behaviour::Unavailable => with_pause(full(503, 20), rng),
            Behaviour::NoResponse => {
                sleep(Duration::from_secs(20)).await;
                full(200, length)
            }
            Behaviour::Reset => {
                state.reset.notify_one();
                std::future::pending().await
            }
            Behaviour::GoAway => {
                state.go_away.notify_one();
                full(200, length)
            }
            _ => full(200, length),
        })
    }
}

/// A request in progress until its response headers.
struct InProgress(Arc<ConnectionState>);

impl InProgress {
    fn new(state: &Arc<ConnectionState>) -> Self {
        state.in_progress.fetch_add(1, Relaxed);
        state.used.notify_one();
        Self(Arc::clone(state))
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Relaxed);
        self.0.used.notify_one();
    }
}

fn acceptor(is_http2: bool) -> TlsAcceptor {
    static ACCEPTORS: LazyLock<[TlsAcceptor; 2]> = LazyLock::new(|| {
        [b"http/1.1".to_vec(), b"h2".to_vec()].map(|protocol| {
            let key = PrivatePkcs8KeyDer::from(CERTIFICATE.signing_key.serialize_der());
            let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![CERTIFICATE.cert.der().clone()], PrivateKeyDer::from(key))
                .unwrap();
            config.alpn_protocols = vec![protocol];
            TlsAcceptor::from(Arc::new(config))
        })
    });
    ACCEPTORS[usize::from(is_http2)].clone()
}

/// Parses a header with a number, which every request of this test has.
fn number<T: std::str::FromStr<Err: StdError>>(headers: &HeaderMap, name: &str) -> T {
    headers[name].to_str().unwrap().parse().unwrap()
}

fn full(status: u16, length: usize) -> ServerResponse {
    let body = Full::new(Bytes::from(vec![b'x'; length])).map_err(|never: Infallible| match never {});
    response(status, length, body.boxed_unsync())
}

/// A body of several parts. `end` is `None` for a whole body, `Some(false)` for a body that breaks, and `Some(true)` for
/// one that stalls.
fn in_parts(parts: usize, gap: Duration, end: Option<bool>) -> ServerResponse {
    let chunks = stream::iter(0..parts).then(move |_| async move {
        sleep(gap).await;
        Ok(Frame::data(Bytes::from_static(&[b'x'; 1_000])))
    });
    let end = stream::iter(end).then(move |stalls| async move {
        sleep(if stalls { Duration::from_secs(3600) } else { gap }).await;
        Err(io::Error::other("broken"))
    });
    response(200, parts * 1_000, UnsyncBoxBody::new(StreamBody::new(chunks.chain(end))))
}

/// Tells the caller the length of the body in a header, independently of HTTP's framing.
fn response(status: u16, length: usize, body: UnsyncBoxBody<Bytes, io::Error>) -> ServerResponse {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response.headers_mut().insert("x-length", length.into());
    response
}

fn with_pause(mut response: ServerResponse, rng: &mut Rng) -> ServerResponse {
    response.headers_mut().insert("retry-after", (rng.below(LONGEST_PAUSE) + 1).into());
    response
}
