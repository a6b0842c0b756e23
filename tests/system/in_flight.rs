//! Tests of the limit of requests in flight at real servers, which count the requests themselves.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, future, stream};
use http::Response;
use http_body_util::{StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use tokio::task::JoinSet;
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

/// Sends `calls` requests from 16 callers. `cancels` returns after how many polls the caller of a request drops it.
async fn call_from_16(client: Client, calls: usize, cancels: fn(usize) -> Option<usize>) {
    let (mut callers, next) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for _ in 0..16 {
        let (client, next) = (client.clone(), Arc::clone(&next));
        callers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::SeqCst);
                if number >= calls {
                    break;
                }
                let call = async {
                    let response = client.get("/").await.unwrap();
                    response.into_body().collect(1024).await.unwrap();
                };
                match cancels(number) {
                    Some(polls) => _ = future::select(Box::pin(call), Box::pin(yields(polls))).await,
                    None => call.await,
                }
            }
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
}

async fn most_at_the_server(
    wire: Wire,
    limiter: LocalLimiter,
    calls: usize,
    cancels: fn(usize) -> Option<usize>,
) -> usize {
    let counter = Arc::new(Counter::default());
    let counting = Arc::clone(&counter);
    let transport = match wire {
        Wire::Http2 => TransportConfig::new().with_http2_prior_knowledge(),
        _ => TransportConfig::new(),
    };
    let server = Server::start(wire, move |number, _| respond(Counted::new(&counting), number)).await;
    let builder = Client::builder(server.url()).unwrap();
    let client =
        builder.without_credential().with_limiter(limiter.clone()).client_with_transport(transport).unwrap();
    within(call_from_16(client, calls, cancels)).await;
    assert_eq!(limiter.snapshot().queued, 0);
    counter.most.load(Ordering::SeqCst)
}

#[tokio::test]
async fn server_never_counts_more_requests_than_the_limit() {
    for wire in [Wire::Http1, Wire::Http2] {
        let limiter = LocalLimiter::unlimited().with_max_in_flight(MAX).unwrap();
        let most = most_at_the_server(wire, limiter.clone(), 5_000, |_| None).await;
        assert_eq!(most, MAX as usize);
        assert_eq!(limiter.snapshot().requests_in_flight, Some(0));
    }
}

/// The hold is longer than any server needs to notice a cancellation. Without it, the server counts more requests.
#[tokio::test]
async fn cancelled_requests_cause_no_excess_if_they_are_held() {
    for wire in [Wire::Http1, Wire::Http2] {
        let limiter = LocalLimiter::unlimited().with_max_in_flight(MAX).unwrap();
        let limiter = limiter.with_hold_after_cancel(Duration::from_secs(1));
        let cancels = |number: usize| (number % 100 == 7).then_some(number / 100 + 1);
        let most = most_at_the_server(wire, limiter.clone(), 1_000, cancels).await;
        assert_eq!(most, MAX as usize);
    }
}

#[tokio::test]
async fn cancelled_requests_leak_no_place() {
    for wire in [Wire::Http1, Wire::Http2] {
        let limiter = LocalLimiter::unlimited().with_max_in_flight(MAX).unwrap();
        most_at_the_server(wire, limiter.clone(), 2_000, |number| (number % 3 == 0).then_some(number % 40))
            .await;
        assert_eq!(limiter.snapshot().requests_in_flight, Some(0));
    }
}
