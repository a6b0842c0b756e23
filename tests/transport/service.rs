//! Tests the transport as a tower service, and layers between the stack and the transport.

use std::{error::Error as StdError, sync::atomic::Ordering::Relaxed};

use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn as serve};
use tokio::{
    net::{UnixListener, UnixStream},
    time::sleep,
};
use tower::{Layer, Service, layer::layer_fn, limit::GlobalConcurrencyLimitLayer};
use tower_outbound::{
    ApiKey, Body, Quota,
    body::ReplayBody,
    stack::TransportService,
    test_util::{ScriptedResponse, ScriptedService},
    transport::{RequestBody, Transport},
};

use super::{support::server::Wire, *};

async fn fetch<B: RequestBody>(transport: &Transport<B>, uri: &str, body: B) -> Bytes {
    let request = Request::post(uri).body(body).unwrap();
    let response = within(transport.clone().oneshot(request)).await.unwrap();
    assert_eq!(response.status(), 200);
    within(response.into_body().bytes_up_to(1_024)).await.unwrap()
}

#[tokio::test]
async fn transport_is_a_service_for_bodies_of_any_type() {
    for (settings, config) in super::versions() {
        let server = Server::quick(settings).await;
        let transport: Transport<Full<Bytes>> = config.build().unwrap();
        assert_eq!(fetch(&transport, &server.url(), Full::from("hello")).await, "ok");
        assert_eq!(server.heads().pop().unwrap().headers["content-length"], "5");
    }
}

#[tokio::test]
async fn transport_returns_an_error_for_a_relative_uri() {
    let transport: Transport<Empty<Bytes>> = TransportConfig::new().build().unwrap();
    let request = Request::get("/v1").body(Empty::new()).unwrap();
    let error = within(transport.oneshot(request)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
}

#[tokio::test]
async fn transport_does_not_send_user_info() {
    let server = Server::quick(Settings::default()).await;
    let transport: Transport<Empty<Bytes>> = TransportConfig::new().build().unwrap();
    let user_info = server.url().replace("://", "://ann:s3cret@");
    for _ in 0..2 {
        let request = Request::get(&user_info).body(Empty::new()).unwrap();
        let error = within(transport.clone().oneshot(request)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(!format!("{error:#} {error:?}").contains("s3cret"), "{error:?}");
        // The origin is now known.
        assert_eq!(fetch(&transport, &server.url(), Empty::new()).await, "ok");
    }
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn spellings_of_an_origin_share_its_connections_and_stay_in_the_requests() {
    // `Host` does not contain the default port.
    for ((settings, config), port) in super::versions().into_iter().zip(["", ":80"]) {
        let server = Server::quick(settings).await;
        let address = server.address();
        let connector = service_fn(move |_: http::Uri| tokio::net::TcpStream::connect(address));
        let transport: Transport<Empty<Bytes>> = config.build_with_connector(connector).unwrap();
        for url in ["http://api.test", "http://API.Test/", "http://api.test:80", "http://API.TEST:80/"] {
            assert_eq!(fetch(&transport, url, Empty::new()).await, "ok");
        }
        assert_eq!((server.connections(), server.requests()), (1, 4));
        let spellings = server.heads().into_iter().map(|head| match head.uri.authority() {
            Some(authority) => authority.to_string(),
            None => head.headers["host"].to_str().unwrap().to_owned(),
        });
        let expected = ["api.test", "API.Test", &format!("api.test{port}"), &format!("API.TEST{port}")];
        assert_eq!(spellings.collect::<Vec<_>>(), expected);
        for url in ["http://api.test:8080", "http://api.test.", "http://other.test"] {
            assert_eq!(fetch(&transport, url, Empty::new()).await, "ok");
        }
        assert_eq!(server.connections(), 4);
    }
}

#[tokio::test]
async fn connect_request_keeps_its_port_if_the_origin_was_first_spelled_without_it() {
    let server = Server::quick(Settings::default()).await;
    let address = server.address();
    let connector = service_fn(move |_: http::Uri| tokio::net::TcpStream::connect(address));
    let transport: Transport<Empty<Bytes>> = TransportConfig::new().build_with_connector(connector).unwrap();
    assert_eq!(fetch(&transport, "http://api.test", Empty::new()).await, "ok");
    let connect = Request::connect("http://api.test:80").body(Empty::new()).unwrap();
    assert_eq!(within(transport.oneshot(connect)).await.unwrap().status(), 200);
    assert_eq!(server.heads().pop().unwrap().uri, "api.test:80");
}

/// With one connection for each origin, a request waits until the connection is idle again.
#[tokio::test]
async fn clones_of_a_transport_share_the_connections_to_each_origin() {
    let servers = [Server::quick(Settings::default()).await, Server::quick(Settings::default()).await];
    let transport = TransportConfig::new().with_max_connections(1).build().unwrap();
    for _ in 0..3 {
        for server in &servers {
            let client = builder(&server.url()).client_with_service(transport.clone()).unwrap();
            assert_eq!(within(text(client.get("/"))).await, "ok");
        }
    }
    for server in &servers {
        assert_eq!((server.connections(), server.requests()), (1, 3));
        assert_eq!(server.heads()[0].headers["host"], server.address().to_string());
    }
}

/// The first request has not opened its connection when the transport learns of the other origin.
#[tokio::test]
async fn request_to_another_origin_removes_no_origin_in_use() {
    let servers = [Server::quick(Settings::default()).await, Server::quick(Settings::default()).await];
    let transport: Transport<Empty<Bytes>> = TransportConfig::new().build().unwrap();
    let call = |server: &Server| {
        let call = transport.clone().call(Request::get(server.url()).body(Empty::new()).unwrap());
        async { within(within(call).await.unwrap().into_body().bytes_up_to(9)).await.unwrap() }
    };
    let calls = [call(&servers[0]), call(&servers[1])];
    for call in calls {
        assert_eq!(call.await, "ok");
    }
    assert_eq!(call(&servers[0]).await, "ok");
    assert_eq!((servers[0].connections(), servers[0].requests()), (1, 2));
}

#[tokio::test]
async fn transport_layers_see_each_attempt_with_its_credential_and_the_first_is_the_outermost() {
    let server = Server::with_statuses(Wire::Http1, [503, 200]).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let named = |name: char| {
        let seen = Arc::clone(&seen);
        layer_fn(move |inner: TransportService| {
            let seen = Arc::clone(&seen);
            inner.map_request(move |request: Request<ReplayBody<Body>>| {
                seen.lock().unwrap().push((name, request.headers()["authorization"].clone()));
                request
            })
        })
    };
    let builder = builder(&server.url()).with_api_key(ApiKey::new("k3y").unwrap());
    let builder = builder.with_transport_layer(named('a')).with_transport_layer(named('b'));
    assert_eq!(within(text(builder.client().unwrap().get("/"))).await, "answer 2");
    let key = http::HeaderValue::from_static("Bearer k3y");
    assert_eq!(*seen.lock().unwrap(), ['a', 'b', 'a', 'b'].map(|name| (name, key.clone())));
}

#[tokio::test]
async fn error_of_a_transport_layer_fails_the_attempt() {
    let server = Server::quick(Settings::default()).await;
    let failing = layer_fn(|_: TransportService| {
        service_fn(|_: Request<ReplayBody<Body>>| async {
            Err::<http::Response<Body>, _>(Box::<dyn StdError + Send + Sync>::from("broken layer"))
        })
    });
    let client = builder(&server.url()).with_transport_layer(failing).client().unwrap();
    for (method, attempts) in [(http::Method::GET, 3), (http::Method::POST, 1)] {
        let error = within(client.request(method, "/").send()).await.unwrap_err();
        assert_eq!(outcomes(error.report().unwrap()), vec![Outcome::Failed; attempts], "{error:?}");
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn stack_with_transport_layers_cannot_be_a_layer() {
    let builder = builder("http://127.0.0.1:1").with_transport_layer(GlobalConcurrencyLimitLayer::new(5));
    let error = builder.layer().map(|layer| drop(layer.layer(()))).unwrap_err();
    assert!(error.to_string().contains("transport layer"), "{error}");
}

#[tokio::test]
async fn custom_connector_opens_unix_sockets() {
    let path = std::env::temp_dir().join(format!("tower-outbound-transport-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = serve(|request: Request<Incoming>| async move {
            let host = request.headers()["host"].to_str().unwrap().to_owned();
            Ok::<_, Infallible>(reply(200, host))
        });
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    });
    let connector = service_fn(move |_: http::Uri| UnixStream::connect(path.clone()));
    let transport = TransportConfig::new().build_with_connector(connector).unwrap();
    let client = builder("http://daemon.test").client_with_service(transport).unwrap();
    assert_eq!(within(text(client.get("/v1"))).await, "daemon.test");
    serving.abort();
}

#[tokio::test]
async fn error_of_a_custom_connector_counts_as_not_sent() {
    let connector = service_fn(|_: http::Uri| async { Err::<tokio::net::TcpStream, _>("no route") });
    let transport = TransportConfig::new().build_with_connector(connector).unwrap();
    let client = builder("http://api.test").client_with_service(transport).unwrap();
    let error = within(client.post("/").body("{}")).await.unwrap_err();
    assert_not_sent(&error, ErrorKind::Connect, 3);
}

#[tokio::test]
async fn dropping_all_clients_closes_their_connections() {
    for (settings, transport) in super::versions() {
        let server = Server::quick(settings).await;
        let path = super::forwarder::Forwarder::start(server.address()).await;
        let client = client(&path.url(), transport);
        assert_eq!(within(text(client.get("/"))).await, "ok");
        drop(client);
        within(path.closed(1)).await;
    }
}

/// Permits of 20 per second are valid for 15 ms. The first requests open connections, and their permits expire. If
/// these requests then waited behind the others, each request would open a connection and spend two permits.
#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_another_permit_leave_their_connections_to_the_next_requests() {
    const CALLS: u64 = 200;
    let opened = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&opened);
    let connector = tower::service_fn(move |_| {
        counter.fetch_add(1, Relaxed);
        async {
            sleep(millis(40)).await;
            let (client, server) = tokio::io::duplex(64 << 10);
            let respond = serve(|_: Request<Incoming>| async {
                sleep(millis(50)).await;
                Ok::<_, Infallible>(http::Response::new(Full::<Bytes>::from("ok")))
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(server), respond));
            Ok::<_, io::Error>(client)
        }
    });
    let limiter = LocalLimiter::paced_window(Quota::per_second(20).unwrap());
    let client = builder("http://api.example.com")
        .with_limiter(limiter.clone())
        .client_with_service(TransportConfig::new().build_with_connector(connector).unwrap())
        .unwrap();
    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for _ in 0..CALLS {
        let client = client.clone();
        calls.spawn(async move { client.post("/").body("{}").await.unwrap().text().await.unwrap() });
    }
    calls.join_all().await;
    let (granted, opened) = (limiter.snapshot().granted, opened.load(Relaxed));
    assert!(granted <= CALLS + 20 && opened <= 20, "{granted} permits, {opened} connections");
    assert!(start.elapsed() < millis(12_500), "{:?}", start.elapsed());
}

/// A layer below the limiter has no slot for a request until its permit has expired.
#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_another_permit_leave_their_slots_to_the_next_requests() {
    let limiter = LocalLimiter::paced_window(Quota::per_second(20).unwrap());
    let slow = ScriptedResponse::status(200).with_delay(millis(200));
    let client = builder("http://api.example.com")
        .with_limiter(limiter.clone())
        .with_transport_layer(GlobalConcurrencyLimitLayer::new(2))
        .client_with_service(ScriptedService::new([slow]))
        .unwrap();
    let start = Instant::now();
    let calls = join_all((0..200).map(|_| client.post("/").body("{}").send())).await;
    assert!(calls.iter().all(|call| call.as_ref().is_ok_and(|response| response.status() == 200)));
    // Two slots and 200 ms for each request take 20 s.
    assert!(start.elapsed() < millis(26_000), "{:?}, {:?}", start.elapsed(), limiter.snapshot());
}
