//! Checks that the futures of calls are `Send` and `'static`, so that `tokio::spawn` accepts them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use bytes::Bytes;
use http::{Request, request::Parts};
use http_body_util::Full;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    ApiKey, Body, BoxError,
    adapter::{Reqwest, SendWith},
    auth::{AuthLayer, BoxSignFuture, Origin, Sign},
    body::ReplayBody,
    stack::StackBuilder,
};

const URL: &str = "https://api.example.com";

type Content = Full<Bytes>;

fn spawnable<F: Future + Send + 'static>(_: F) {}

fn hyper<B: http_body::Body<Data: Send> + Send>() -> Client<HttpConnector, B> {
    Client::builder(TokioExecutor::new()).build_http()
}

fn unkeyed() -> StackBuilder {
    StackBuilder::new(URL).unwrap()
}

fn keyed() -> StackBuilder {
    unkeyed().with_api_key(ApiKey::new("s3cret").unwrap())
}

fn get<B: Default>() -> Request<B> {
    Request::get(URL).body(B::default()).unwrap()
}

struct Signer;

impl Sign for Signer {
    fn sign<'a>(&'a self, _: &'a mut Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test]
async fn call_over_hyper_with_each_kind_of_credential_can_be_spawned() {
    let authorize = |_: &mut Parts| Ok::<_, BoxError>(());
    for builder in [
        keyed(),
        keyed().with_signature(Signer),
        keyed().with_authorize(authorize),
        unkeyed().without_credential(),
    ] {
        spawnable(builder.layer().unwrap().layer(hyper::<ReplayBody<Body>>()).oneshot(get::<Body>()));
        spawnable(builder.layer().unwrap().layer(hyper::<ReplayBody<Content>>()).oneshot(get::<Content>()));
    }
    let single = AuthLayer::from_sign(Signer, Origin::parse(URL).unwrap()).unwrap();
    spawnable(single.layer(hyper::<Body>()).oneshot(get::<Body>()));
}

#[tokio::test]
async fn call_over_reqwest_can_be_spawned() {
    let client = reqwest::Client::new();
    let adapter = Reqwest::from_client(client.clone());
    spawnable(keyed().layer().unwrap().layer(adapter.clone()).oneshot(get::<reqwest::Body>()));
    spawnable(keyed().client_with_service(adapter).unwrap().get("/v1").send());
    let stack = keyed().reqwest(client.clone()).unwrap();
    spawnable(async move { client.get(URL).send_with(&stack).await.map(|response| response.status()) });
}

#[tokio::test]
async fn requests_of_a_client_and_the_ways_to_read_a_response_can_be_spawned() {
    let client = keyed().client().unwrap();
    spawnable(client.get("/v1").query(&[("a", "b")]).send());
    spawnable(client.execute(Request::get("/v1").body(Body::empty()).unwrap()));
    spawnable(async move {
        let response = client.post("/v1").body("letter").idempotent().cost(1).await?;
        let text = response.error_for_status().await?.text().await?;
        let number: u32 = client.post("/v1").json(&7).fetch_json().await?;
        let again: u32 = client.get("/v1").await?.error_for_status().await?.json().await?;
        Ok::<_, BoxError>((text, number, again, client.get("/v1").fetch_text().await?))
    });
}
