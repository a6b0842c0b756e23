//! Tests of the limit of requests in flight at real servers, which count the requests themselves.

use std::{
    convert::Infallible,
    future::{Future, ready},
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, future, stream};
use http::{Response, Uri};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::Frame,
    server::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{DuplexStream, duplex},
    time::sleep,
};
use tower::{Service, ServiceExt, layer::layer_fn, service_fn};
use tower_outbound::{
    BoxError, Client,
    limit::LocalLimiter,
    stack::{StackBuilder, TransportService},
    transport::TransportConfig,
};

use crate::support::server::{Reply, Server, Wire, within};

const MAX: u32 = 4;

/// The requests at a server or a client: those whose responses have not ended, and the most at one time.
#[derive(Default)]
struct Counter {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Counter {
    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

/// One of the requests.
struct Counted {
    counter: Arc<Counter>,
    /// How long the request still counts after it was cancelled.
    notice: Duration,
}

impl Counted {
    fn new(counter: &Arc<Counter>, notice: Duration) -> Self {
        let now = counter.now.fetch_add(1, Ordering::SeqCst) + 1;
        counter.most.fetch_max(now, Ordering::SeqCst);
        Self { counter: Arc::clone(counter), notice }
    }

    fn end(mut self) {
        self.notice = Duration::ZERO;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let (counter, notice) = (Arc::clone(&self.counter), self.notice);
        if notice.is_zero() {
            counter.now.fetch_sub(1, Ordering::SeqCst);
        } else {
            tokio::spawn(async move {
                sleep(notice).await;
                counter.now.fetch_sub(1, Ordering::SeqCst);
            });
        }
    }
}

/// Ends the request after the last frame.
fn until_end<T>(frames: impl Stream<Item = T>, counted: Counted) -> impl Stream<Item = T> {
    let mut counted = Some(counted);
    frames.chain(stream::poll_fn(move |_| {
        counted.take().into_iter().for_each(Counted::end);
        Poll::Ready(None)
    }))
}

async fn yields(number: usize) {
    for _ in 0..number {
        tokio::task::yield_now().await;
    }
}

/// Responds after a while, with a body of several frames.
async fn respond(counted: Counted, number: usize) -> Option<Reply> {
    yields(number % 7).await;
    let frames = stream::iter(0..number % 4).then(async |frame| {
        yields(frame).await;
        Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"frame")))
    });
    Some(Response::new(UnsyncBoxBody::new(StreamBody::new(until_end(frames, counted)))))
}

/// Sends `calls` requests from 16 callers.
async fn call_from_16<F>(client: &Client, calls: usize, call: impl Fn(Client, usize) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let calls = stream::iter(0..calls).map(|number| tokio::spawn(within(call(client.clone(), number))));
    calls.buffer_unordered(16).for_each(|outcome| async { outcome.unwrap() }).await;
}

fn transport(wire: &Wire) -> TransportConfig {
    match wire {
        Wire::Http2 => TransportConfig::new().with_http2_prior_knowledge(),
        _ => TransportConfig::new(),
    }
}

/// Returns a client that counts its requests below the limiter, from their permits to the ends of their bodies.
fn counting(url: String, limiter: &LocalLimiter, counter: &Arc<Counter>) -> StackBuilder {
    let counter = Arc::clone(counter);
    let layer = layer_fn(move |inner: TransportService| {
        let counter = Arc::clone(&counter);
        service_fn(move |request| {
            let (counted, response) =
                (Counted::new(&counter, Duration::ZERO), inner.clone().oneshot(request));
            async move {
                let (head, body) = response.await?.into_parts();
                let frames = until_end(body.into_data_stream().map_ok(Frame::data), counted);
                Ok::<_, BoxError>(Response::from_parts(head, StreamBody::new(frames)))
            }
        })
    });
    let builder = Client::builder(url).unwrap().without_credential();
    builder.with_limiter(limiter.clone()).with_transport_layer(layer)
}

async fn read(client: Client, path: &'static str) {
    let response = client.get(path).await.unwrap();
    response.into_body().bytes_up_to(1024).await.unwrap();
}

/// Reads the response, unless the call is cancelled before its end.
async fn read_or_cancel(client: Client, number: usize) {
    match number % 6 {
        // Drops the body after its first frame, if it has one.
        0 | 3 => drop(client.get("/").await.unwrap().into_body().frame().await),
        1 => drop(future::select(Box::pin(read(client, "/")), Box::pin(yields(number % 40))).await),
        _ => read(client, "/").await,
    }
}

async fn client_never_has_more_requests_than_the_limit(wire: Wire) {
    let limiter = LocalLimiter::without_quota().with_max_in_flight(MAX).unwrap();
    let [at_server, in_client] = [(); 2].map(|()| Arc::new(Counter::default()));
    let counter = Arc::clone(&at_server);
    let handler = move |number, _| respond(Counted::new(&counter, Duration::ZERO), number);
    let server = Server::start(wire.clone(), handler).await;
    let client = counting(server.url(), &limiter, &in_client);
    let client = client.client_with_transport(transport(&wire)).unwrap();
    call_from_16(&client, 4_000, |client, _| read(client, "/")).await;
    assert_eq!((at_server.most(), in_client.most()), (MAX as usize, MAX as usize));
    assert_eq!(limiter.snapshot().requests_in_flight, Some(0));

    call_from_16(&client, 6_000, read_or_cancel).await;
    assert_eq!(in_client.most(), MAX as usize);
    assert_eq!(limiter.snapshot().requests_in_flight, Some(0));
}

#[tokio::test]
async fn http1_client_never_has_more_requests_than_the_limit_and_cancelled_ones_do_not_stay_in_flight() {
    client_never_has_more_requests_than_the_limit(Wire::Http1).await;
}

#[tokio::test]
async fn http2_client_never_has_more_requests_than_the_limit_and_cancelled_ones_do_not_stay_in_flight() {
    client_never_has_more_requests_than_the_limit(Wire::Http2).await;
}

/// Serves connections in memory. A cancelled request still counts for 5 ms.
fn connector(
    wire: Wire,
    counter: Arc<Counter>,
) -> impl Service<Uri, Response = DuplexStream, Error = Infallible, Future: Send> + Clone + Send + Sync {
    let number = Arc::new(AtomicUsize::new(0));
    let respond = hyper::service::service_fn(move |_| {
        let counted = Counted::new(&counter, Duration::from_millis(5));
        let reply = respond(counted, number.fetch_add(1, Ordering::SeqCst));
        async { reply.await.ok_or("no reply") }
    });
    service_fn(move |_| {
        let (client, server) = duplex(1 << 14);
        let (server, respond) = (TokioIo::new(server), respond.clone());
        match wire {
            Wire::Http2 => drop(tokio::spawn(
                http2::Builder::new(TokioExecutor::new()).serve_connection(server, respond),
            )),
            _ => drop(tokio::spawn(http1::Builder::new().serve_connection(server, respond))),
        }
        ready(Ok(client))
    })
}

/// The client has at most four requests, so the others at the server are cancelled ones that it has not noticed.
#[tokio::test(start_paused = true)]
async fn server_counts_cancelled_requests_beyond_the_limit_only_without_a_hold() {
    for wire in [Wire::Http1, Wire::Http2] {
        for hold in [0, 20].map(Duration::from_millis) {
            let limiter = LocalLimiter::without_quota().with_max_in_flight(MAX).unwrap();
            let limiter = limiter.with_hold_after_cancel(hold);
            let [at_server, in_client] = [(); 2].map(|()| Arc::new(Counter::default()));
            let transport = transport(&wire).build_with_connector(connector(wire.clone(), at_server.clone()));
            let client = counting("http://api.example.com".to_owned(), &limiter, &in_client);
            let client = client.with_plaintext().client_with_service(transport.unwrap()).unwrap();
            call_from_16(&client, 300, read_or_cancel).await;
            assert_eq!(in_client.most(), MAX as usize);
            assert_eq!(at_server.most() > MAX as usize, hold.is_zero(), "{} with {hold:?}", at_server.most());
        }
    }
}
