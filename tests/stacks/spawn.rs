//! Runs calls through a preset's layer in tasks. Each `tokio::spawn` proves that the call's future is `Send` and
//! `'static`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use bytes::Bytes;
use http::{Request, request};
use http_body_util::Full;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    ApiKey, Body, BoxError,
    adapter::{Reqwest, SendWith},
    auth::{AuthLayer, BoxSignFuture, Sign},
    body::ReplayBody,
    stack::StackBuilder,
    test_util::{ScriptedResponse, ScriptedServer, ScriptedService},
};

type Hyper<B> = Client<HttpConnector, ReplayBody<B>>;

fn hyper<B: http_body::Body<Data: Send> + Send>() -> Hyper<B> {
    Client::builder(TokioExecutor::new()).build_http()
}

fn hyper_without_replay() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn server() -> (ScriptedServer, ScriptedService) {
    let service = ScriptedService::new([ScriptedResponse::status(200)]);
    (ScriptedServer::start(service.clone()).await.unwrap(), service)
}

fn unkeyed(server: &ScriptedServer) -> StackBuilder {
    StackBuilder::new(server.url()).unwrap().with_name("spawned")
}

fn keyed(server: &ScriptedServer) -> StackBuilder {
    unkeyed(server).with_api_key(ApiKey::new("s3cret").unwrap())
}

fn get_from<B: Default>(server: &ScriptedServer) -> Request<B> {
    Request::get(format!("{}/v1", server.url())).body(B::default()).unwrap()
}

/// Signs each request with the fixed header `x-signature: signed`.
struct Signer;

impl Sign for Signer {
    fn sign<'a>(&'a self, head: &'a mut request::Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
        Box::pin(async move {
            head.headers.insert("x-signature", "signed".parse()?);
            Ok(())
        })
    }
}

#[tokio::test]
async fn call_over_hyper_with_each_kind_of_credential_can_be_spawned() {
    let (server, service) = server().await;
    let authorize = |head: &mut request::Parts| {
        head.headers.insert("x-custom", "1".parse()?);
        Ok::<_, BoxError>(())
    };
    let presets = [
        (keyed(&server), "authorization"),
        (keyed(&server).with_signature(Signer), "x-signature"),
        (keyed(&server).with_authorize(authorize), "x-custom"),
        (unkeyed(&server).without_credential(), "x-request-id"),
    ];
    for (preset, header) in presets {
        let stack = preset.layer().unwrap().layer(hyper::<Body>());
        let request = get_from::<Body>(&server);
        let call = tokio::spawn(async move { stack.oneshot(request).await });
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
        assert!(service.seen().last().unwrap().header(header).is_some(), "{header}");

        let stack = preset.layer().unwrap().layer(hyper::<Full<Bytes>>());
        let request = get_from::<Full<Bytes>>(&server);
        let call = tokio::spawn(async move { stack.oneshot(request).await });
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test]
async fn call_over_reqwest_can_be_spawned() {
    let (server, service) = server().await;
    let builder = || reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    let adapters = [Reqwest::new(builder()).unwrap(), Reqwest::from_client(builder().build().unwrap())];
    for adapter in adapters {
        let stack = keyed(&server).layer().unwrap().layer(adapter.clone());
        let request = get_from::<reqwest::Body>(&server);
        let call = tokio::spawn(async move { stack.oneshot(request).await });
        assert_eq!(call.await.unwrap().unwrap().status(), 200);

        let client = keyed(&server).client_with_service(adapter).unwrap();
        let call = tokio::spawn(async move { client.get("/v1").await });
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    let client = builder().build().unwrap();
    let (stack, request) = (keyed(&server).reqwest(client.clone()).unwrap(), client.get(server.url()));
    let call = tokio::spawn(async move { request.send_with(&stack).await.map(|response| response.status()) });
    assert_eq!(call.await.unwrap().unwrap(), 200);
    assert_eq!(service.calls(), 5);
}

#[tokio::test]
async fn requests_of_a_client_and_the_ways_to_read_a_response_can_be_spawned() {
    let service = ScriptedService::new([ScriptedResponse::status(200).with_body("7")]);
    let server = ScriptedServer::start(service.clone()).await.unwrap();
    let client = keyed(&server).client().unwrap();
    let sent = tokio::spawn(client.get("/v1").query(&[("a", "b")]).send());
    assert_eq!(sent.await.unwrap().unwrap().status(), 200);
    let executed = tokio::spawn(client.execute(Request::get("/v1").body(Body::empty()).unwrap()));
    assert_eq!(executed.await.unwrap().unwrap().status(), 200);
    let read = tokio::spawn(async move {
        let response = client.post("/v1").body("letter").idempotent().cost(1).await?;
        let text = response.error_for_status().await?.text().await?;
        let number: u32 = client.post("/v1").json(&7).fetch_json().await?;
        let again: u32 = client.get("/v1").await?.error_for_status().await?.json().await?;
        Ok::<_, BoxError>((text, number, again, client.get("/v1").fetch_text().await?))
    });
    assert_eq!(read.await.unwrap().unwrap(), ("7".to_owned(), 7, 7, "7".to_owned()));
    assert_eq!(service.calls(), 6);
}

#[tokio::test]
async fn call_through_a_single_sign_layer_can_be_spawned() {
    let (server, service) = server().await;
    let origin = tower_outbound::auth::Origin::parse(&server.url()).unwrap();
    let stack = AuthLayer::from_sign(Signer, origin).unwrap().layer(hyper_without_replay());
    let request = get_from::<Body>(&server);
    let call = tokio::spawn(async move { stack.oneshot(request).await });
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
    assert_eq!(service.seen()[0].header("x-signature"), Some("signed"));
}
