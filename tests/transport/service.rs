//! Tests the transport as a tower service, and layers between the stack and the transport.

use std::{
    error::Error as StdError,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::{Empty, Full};
use tokio::net::{UnixListener, UnixStream};
use tower::{Layer, ServiceExt, layer::layer_fn, limit::GlobalConcurrencyLimitLayer, service_fn};
use tower_outbound::{
    ApiKey, Body, ErrorKind,
    body::ReplayBody,
    call::Outcome,
    stack::TransportService,
    transport::{RequestBody, Transport, TransportConfig},
};

use super::{
    assert_not_sent, builder, client, http2, millis, outcomes,
    server::{Server, Settings, reply},
    support::server::{settle, within},
    text,
};

async fn fetch<B: RequestBody>(transport: &Transport<B>, uri: &str, body: B) -> Bytes {
    let request = Request::post(uri).body(body).unwrap();
    let response = within(transport.clone().oneshot(request)).await.unwrap();
    assert_eq!(response.status(), 200);
    within(response.into_body().bytes_up_to(1_024)).await.unwrap()
}

#[tokio::test]
async fn transport_is_a_service_for_bodies_of_any_type() {
    for (settings, config) in [(Settings::default(), TransportConfig::new()), (Settings::http2(), http2())] {
        let server = Server::quick(settings).await;
        let transport: Transport<Empty<Bytes>> = config.clone().build().unwrap();
        assert_eq!(fetch(&transport, &server.url(), Empty::new()).await, "ok");
        settle().await;
        assert_eq!(fetch(&transport, &server.url(), Empty::new()).await, "ok", "a clone of the transport");
        assert_eq!(server.connections(), 1, "clones share connections");

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
async fn clients_over_one_transport_share_connections() {
    let server = Server::quick(Settings::default()).await;
    let transport = TransportConfig::new().build().unwrap();
    for _ in 0..2 {
        let client = builder(&server.url()).client_with_service(transport.clone()).unwrap();
        assert_eq!(within(text(client.get("/"))).await, "ok");
        settle().await;
    }
    assert_eq!((server.connections(), server.requests()), (1, 2));
}

#[tokio::test]
async fn one_transport_sends_to_several_origins() {
    let (first, second) =
        (Server::quick(Settings::default()).await, Server::quick(Settings::default()).await);
    let transport: Transport<Empty<Bytes>> = TransportConfig::new().build().unwrap();
    for _ in 0..3 {
        for server in [&first, &second] {
            assert_eq!(fetch(&transport, &server.url(), Empty::new()).await, "ok");
            settle().await;
        }
    }
    for server in [&first, &second] {
        assert_eq!((server.connections(), server.requests()), (1, 3));
        assert_eq!(server.heads()[0].headers["host"], server.address().to_string());
    }
}

#[tokio::test]
async fn transport_layer_sees_each_attempt_with_its_credential() {
    let server = Server::start(Settings::default(), |number, _| async move {
        reply(if number == 1 { 503 } else { 200 }, "ok")
    })
    .await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let layer = layer_fn(move |inner: TransportService| {
        let log = Arc::clone(&log);
        inner.map_request(move |request: Request<ReplayBody<Body>>| {
            log.lock().unwrap().push(request.headers()["authorization"].clone());
            request
        })
    });
    let builder = builder(&server.url()).with_api_key(ApiKey::new("k3y").unwrap());
    let client = builder.with_transport_layer(layer).client().unwrap();
    assert_eq!(within(text(client.get("/"))).await, "ok");
    assert_eq!(*seen.lock().unwrap(), ["Bearer k3y", "Bearer k3y"]);
}

#[tokio::test]
async fn first_transport_layer_is_the_outermost() {
    let server = Server::quick(Settings::default()).await;
    let order = Arc::new(Mutex::new(String::new()));
    let named = |name: char| {
        let order = Arc::clone(&order);
        layer_fn(move |inner: TransportService| {
            let order = Arc::clone(&order);
            inner.map_request(move |request: Request<ReplayBody<Body>>| {
                order.lock().unwrap().push(name);
                request
            })
        })
    };
    let builder = builder(&server.url()).with_transport_layer(named('a')).with_transport_layer(named('b'));
    assert_eq!(within(text(builder.client().unwrap().get("/"))).await, "ok");
    assert_eq!(*order.lock().unwrap(), "ab");
}

#[tokio::test]
async fn concurrency_limit_below_the_stack_holds() {
    let server = Server::start(Settings::default(), |_, _| async {
        tokio::time::sleep(millis(20)).await;
        reply(200, "ok")
    })
    .await;
    let limit = GlobalConcurrencyLimitLayer::new(5);
    let client = builder(&server.url()).with_transport_layer(limit).client().unwrap();
    let calls = within(join_all((0..40).map(|_| text(client.get("/"))))).await;
    assert!(calls.iter().all(|body| body == "ok"));
    assert_eq!(server.requests(), 40);
    let most = server.most_in_progress();
    assert!(most <= 5, "{most} requests were in progress");
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
        let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async move {
            let host = request.headers()["host"].to_str().unwrap().to_owned();
            Ok::<_, std::convert::Infallible>(reply(200, host))
        });
        let stream = hyper_util::rt::TokioIo::new(stream);
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await;
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
    for (settings, transport) in [(Settings::default(), TransportConfig::new()), (Settings::http2(), http2())]
    {
        let server = Server::quick(settings).await;
        let path = super::forwarder::Forwarder::start(server.address()).await;
        let client = client(&path.url(), transport);
        assert_eq!(within(text(client.get("/"))).await, "ok");
        drop(client);
        within(path.closed(1)).await;
    }
}
