//! Tests `ScriptedServer`, which returns scripted responses over real connections.

use std::io;

use http::Version;
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::time::timeout;
use tower_outbound::test_util::{ScriptedResponse, ScriptedServer, ScriptedService};

use super::*;

fn client(http2: bool) -> Client<HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new()).http2_only(http2).build_http()
}

fn post(server: &ScriptedServer) -> Request<Full<Bytes>> {
    Request::post(format!("{}/v1?a=b", server.url())).header("x-own", "1").body(Full::from("hello")).unwrap()
}

#[tokio::test]
async fn scripted_server_serves_and_records_http1_and_http2_requests() {
    for (http2, version) in [(false, Version::HTTP_11), (true, Version::HTTP_2)] {
        let script = ScriptedService::new([
            ScriptedResponse::status(404).with_header("x-server", "2").with_body("nothing"),
            ScriptedResponse::io_error(io::ErrorKind::Other),
            200.into(),
        ]);
        let server = ScriptedServer::start(script.clone()).await.unwrap();
        let client = client(http2);

        let response = client.request(post(&server)).await.unwrap();
        assert_eq!((response.status().as_u16(), response.headers()["x-server"].as_bytes()), (404, &b"2"[..]));
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "nothing");
        assert!(client.request(post(&server)).await.is_err());
        assert_eq!(client.request(post(&server)).await.unwrap().status(), 200);

        // A scripted error closes an HTTP/1.1 connection, but resets only the stream of an HTTP/2 connection.
        assert_eq!((script.calls(), server.connections()), (3, if http2 { 1 } else { 2 }));
        for seen in script.seen() {
            assert_eq!((&seen.head.version, seen.head.uri.query()), (&version, Some("a=b")));
            assert_eq!((seen.header("x-own"), seen.attempt), (Some("1"), None));
            assert_eq!(seen.body.unwrap(), "hello");
        }
    }
}

#[tokio::test]
async fn dropping_a_scripted_server_closes_its_listener_and_connections() {
    let script = ScriptedService::new([ScriptedResponse::status(200), ScriptedResponse::never()]);
    let server = ScriptedServer::start(script.clone()).await.unwrap();
    let client = client(false);
    assert_eq!(client.request(post(&server)).await.unwrap().status(), 200);
    let later = post(&server);
    let in_flight = tokio::spawn(client.request(post(&server)));
    while script.calls() < 2 {
        tokio::task::yield_now().await;
    }
    drop(server);
    assert!(timeout(secs(10), in_flight).await.unwrap().unwrap().is_err());
    assert!(timeout(secs(10), client.request(later)).await.unwrap().unwrap_err().is_connect());
    assert_eq!(script.instances(), 1);
}
