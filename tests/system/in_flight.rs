//! Tests of the limit of requests in flight at real servers, which count the requests themselves.

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures_util::{StreamExt, future, stream};
use http::Response;
use http_body_util::{StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use tower_outbound::{Client, limit::LocalLimiter, transport::TransportConfig};

use crate::support::server::{Reply, Server, Wire, within};

const MAX: u32 = 4;

/// The requests at a server: those whose responses have not ended, and the most at one time.
#[derive(Default)]
struct Counter {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// One of the requests.
struct Counted(Arc<Counter>);

impl Counted {
    fn new(counter: &Arc<Counter>) -> Self {
        let now = counter.now.fetch_add(1, Ordering::SeqCst) + 1;
        counter.most.fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(counter))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn yields(number: usize) {
    for _ in 0..number {
        tokio::task::yield_now().await;
    }
}

/// Responds after a while, with a body of several frames.
async fn respond(counted: Counted, number: usize) -> Option<Reply> {
    yields(number % 7).await;
    let frames = stream::iter(0..number % 4).then(move |frame| {
        let _ = &counted;
        async move {
            yields(frame).await;
            Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"frame")))
        }
    });
    Some(Response::new(UnsyncBoxBody::new(StreamBody::new(frames))))
}

/// Sends `calls` requests from 16 callers.
async fn call_from_16<F>(client: &Client, calls: usize, call: impl Fn(Client, usize) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let calls = stream::iter(0..calls).map(|number| tokio::spawn(within(call(client.clone(), number))));
    calls.buffer_unordered(16).for_each(|outcome| async { outcome.unwrap() }).await;
}

fn client(server: &Server, limiter: &LocalLimiter, wire: &Wire) -> Client {
    let transport = match wire {
        Wire::Http2 => TransportConfig::new().with_http2_prior_knowledge(),
        _ => TransportConfig::new(),
    };
    let builder = Client::builder(server.url()).unwrap().without_credential();
    builder.with_limiter(limiter.clone()).client_with_transport(transport).unwrap()
}

async fn read(client: Client, path: &'static str) {
    let response = client.get(path).await.unwrap();
    response.into_body().bytes_up_to(1024).await.unwrap();
}

#[tokio::test]
async fn server_never_counts_more_requests_than_the_limit_and_cancelled_ones_do_not_stay_in_flight() {
    for wire in [Wire::Http1, Wire::Http2] {
        let limiter = LocalLimiter::without_quota().with_max_in_flight(MAX).unwrap();
        let counter = Arc::new(Counter::default());
        let counting = Arc::clone(&counter);
        let handler = move |number, _| respond(Counted::new(&counting), number);
        let server = Server::start(wire.clone(), handler).await;
        let client = client(&server, &limiter, &wire);
        call_from_16(&client, 5_000, |client, _| read(client, "/")).await;
        assert_eq!(counter.most.load(Ordering::SeqCst), MAX as usize);
        assert_eq!(limiter.snapshot().requests_in_flight, Some(0));

        call_from_16(&client, 2_000, |client, number| async move {
            if number % 3 == 0 {
                future::select(Box::pin(read(client, "/")), Box::pin(yields(number % 40))).await;
            } else {
                read(client, "/").await;
            }
        })
        .await;
        assert_eq!(limiter.snapshot().requests_in_flight, Some(0));
    }
}
