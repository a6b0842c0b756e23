//! Minimal scenarios of the failures that the simulation has found.

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    io::DuplexStream,
    time::{Instant, sleep, timeout},
};
use tower::ServiceExt;
use tower_outbound::{
    Client, Quota,
    limit::{Acquire, Limiter, Permit, PermitRequest},
    test_util::Arrivals,
    transport::{Transport, TransportConfig},
};

use crate::dispatchers::keep_dispatchers;

type RequestBody = UnsyncBoxBody<Bytes, Infallible>;

/// Returns a transport whose connections are served in memory, and the number of connections that are served.
fn transport<F, S>(config: TransportConfig, serve: S) -> (Transport<RequestBody>, Arc<AtomicUsize>)
where
    S: Fn(DuplexStream) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let open = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&open);
    let connector = tower::service_fn(move |_| {
        let (client, server) = tokio::io::duplex(64 << 10);
        let (counter, served) = (Arc::clone(&counter), serve(server));
        counter.fetch_add(1, Relaxed);
        tokio::spawn(async move {
            served.await;
            counter.fetch_sub(1, Relaxed);
        });
        async { Ok::<_, io::Error>(client) }
    });
    (config.build_with_connector(connector).unwrap(), open)
}

/// Sends a request to a server that needs this time for its response.
async fn call(
    transport: &Transport<RequestBody>,
    server_time: Duration,
) -> Result<u16, tower_outbound::Error> {
    let request = Request::put("http://server/").header("x-time", server_time.as_millis().to_string());
    let request = request.body(Full::from("body").boxed_unsync()).unwrap();
    transport.clone().oneshot(request).await.map(|response| response.status().as_u16())
}

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let time = request.headers()["x-time"].to_str().unwrap().parse().unwrap();
    sleep(Duration::from_millis(time)).await;
    Ok(Response::new(Full::from("fine")))
}

/// Serves HTTP/2. Sends GOAWAY after `lifetime`.
async fn serve_http2(stream: DuplexStream, lifetime: Duration) {
    let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service_fn(respond)));
    if timeout(lifetime, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// All connections have been idle for too long, so no request may use them. They must not keep their places.
#[tokio::test(start_paused = true)]
async fn an_expired_http2_connection_does_not_delay_the_next_request() {
    keep_dispatchers();
    let config = TransportConfig::new()
        .with_http2_prior_knowledge()
        .with_max_connections(1)
        .with_idle_timeout(Duration::from_secs(20));
    let (transport, _) = transport(config, |stream| serve_http2(stream, Duration::from_secs(3600)));
    call(&transport, Duration::ZERO).await.unwrap();
    sleep(Duration::from_secs(15)).await;
    call(&transport, Duration::ZERO).await.unwrap();
    // The pool looks for idle connections after 20 s and 40 s.
    sleep(Duration::from_secs(21)).await;
    let start = Instant::now();
    call(&transport, Duration::ZERO).await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(10), "{:?}", start.elapsed());
}

/// The connection opens after three windows, when the limiter has granted the permits of all calls.
#[tokio::test(start_paused = true)]
async fn requests_that_waited_for_a_connection_leave_at_the_rate_of_the_quota() {
    keep_dispatchers();
    let quota = Quota::per_second(10).unwrap();
    let arrivals = Arrivals::new();
    let seen = arrivals.clone();
    let connector = tower::service_fn(move |_| {
        let seen = seen.clone();
        async move {
            sleep(Duration::from_secs(3)).await;
            let (client, server) = tokio::io::duplex(64 << 10);
            let respond = service_fn(move |_| {
                seen.note();
                async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("fine"))) }
            });
            let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
            tokio::spawn(
                async move { builder.serve_connection(TokioIo::new(server), respond).await.unwrap() },
            );
            Ok::<_, io::Error>(client)
        }
    });
    let config = TransportConfig::new().with_http2_prior_knowledge();
    let builder = Client::builder("http://server").unwrap().without_credential().with_quota(quota);
    let client = builder.client_with_service(config.build_with_connector(connector).unwrap()).unwrap();
    let calls = (0..40).map(|_| tokio::spawn(client.get("/").send()));
    for call in calls.collect::<Vec<_>>() {
        let response = call.await.unwrap().unwrap();
        let report = response.report().unwrap();
        assert_eq!(report.attempts().len(), 1, "{report}");
    }
    assert_eq!(arrivals.times().len(), 40);
    arrivals.assert_within(quota);
}

/// The limiter never grants the second permit. The attempt timeout, which is below the limiter, watches the deadline.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_another_permit_ends_at_its_deadline() {
    keep_dispatchers();
    let connector = tower::service_fn(move |_| async move {
        sleep(Duration::from_secs(4)).await;
        let (client, server) = tokio::io::duplex(64 << 10);
        tokio::spawn(serve_http2(server, Duration::from_secs(3600)));
        Ok::<_, io::Error>(client)
    });
    let transport =
        TransportConfig::new().with_http2_prior_knowledge().build_with_connector(connector).unwrap();
    let client = Client::builder("http://server")
        .unwrap()
        .without_credential()
        .with_limiter(Once::default())
        .with_total_timeout(Duration::from_secs(20))
        .client_with_service(transport)
        .unwrap();
    let start = Instant::now();
    let error = client.get("/").await.unwrap_err();
    assert_eq!((error.is_deadline(), start.elapsed()), (true, Duration::from_secs(20)), "{error}");
    let attempts = error.report().unwrap().attempts();
    assert_eq!((attempts.len(), attempts[0].sent), (1, None), "{attempts:?}");
}

/// Grants one permit.
#[derive(Debug, Clone, Default)]
struct Once(Arc<AtomicUsize>);

impl Limiter for Once {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        match self.0.fetch_add(1, Relaxed) {
            0 => Acquire::ready(Ok(Permit::new(request.cost()))),
            _ => Acquire::new(std::future::pending()),
        }
    }
}
