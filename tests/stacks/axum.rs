//! Tests a client in the state of an axum server. The handler passes the inbound `x-request-id` on.
#![allow(clippy::unwrap_used, reason = "a test")]

use axum::body::Body;
use http::Request;
use tower::ServiceExt;
use tower_outbound::{
    ApiKey, Client,
    test_util::{ScriptedResponse, ScriptedServer, ScriptedService},
};

/// The axum program that the crate's guide shows.
mod program {
    use axum::{
        Router,
        extract::{Path, State},
        http::{HeaderMap, StatusCode},
        routing::get,
    };
    use tower_outbound::Client;

    pub fn app(orders: Client) -> Router {
        Router::new().route("/orders/{number}", get(order)).with_state(orders)
    }

    async fn order(
        State(orders): State<Client>,
        Path(number): Path<u64>,
        inbound: HeaderMap,
    ) -> Result<String, StatusCode> {
        let mut request = orders.get(format!("/orders/{number}"));
        if let Some(id) = inbound.get("x-request-id") {
            request = request.header("x-request-id", id);
        }
        request.fetch_text().await.map_err(|error| match error.status() {
            Some(StatusCode::NOT_FOUND) => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_GATEWAY,
        })
    }
}

/// The code in the crate's guide that creates a client over an existing `reqwest::Client`.
mod existing_client {
    use tower_outbound::{ApiKey, Client, InvalidConfig, Quota, adapter::Reqwest};

    /// Build `http` with `redirect::Policy::none()`, because the layers do not see the redirects that reqwest follows.
    pub fn orders(http: reqwest::Client, base_url: &str, key: ApiKey) -> Result<Client, InvalidConfig> {
        Client::builder(base_url)?
            .with_api_key(key)
            .with_quota(Quota::per_minute(300)?)
            .client_with_service(Reqwest::from_client(http))
    }
}

#[tokio::test]
async fn handler_sends_the_inbound_request_id_with_its_call() {
    let service = ScriptedService::new([ScriptedResponse::status(200).with_body("a lamp")]);
    let server = ScriptedServer::start(service.clone()).await.unwrap();
    let orders = Client::builder(server.url()).unwrap().without_credential().client().unwrap();
    let inbound = Request::get("/orders/7").header("x-request-id", "id-of-the-caller").body(Body::empty());
    let response = program::app(orders).oneshot(inbound.unwrap()).await.unwrap();
    let body = axum::body::to_bytes(response.into_body(), 64).await.unwrap();
    assert_eq!(body, "a lamp");
    let seen = &service.seen()[0];
    assert_eq!((seen.head.uri.path(), seen.header("x-request-id")), ("/orders/7", Some("id-of-the-caller")));
}

#[tokio::test]
async fn handler_sends_the_call_through_an_existing_reqwest_client() {
    let service = ScriptedService::new([503, 200]);
    let server = ScriptedServer::start(service.clone()).await.unwrap();
    let http =
        reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build().unwrap();
    let orders = existing_client::orders(http, &server.url(), ApiKey::new("k3y").unwrap()).unwrap();
    let inbound = Request::get("/orders/7").body(Body::empty()).unwrap();
    assert!(program::app(orders).oneshot(inbound).await.unwrap().status().is_success());
    assert_eq!(service.calls(), 2, "retried after the 503");
    assert!(service.seen().iter().all(|seen| seen.header("authorization") == Some("Bearer k3y")));
}

#[tokio::test]
async fn handler_returns_404_if_the_order_does_not_exist_and_502_after_any_other_failure() {
    let server = ScriptedServer::start(ScriptedService::new([404, 400])).await.unwrap();
    let orders = Client::builder(server.url()).unwrap().without_credential().client().unwrap();
    for status in [404, 502] {
        let inbound = Request::get("/orders/7").body(Body::empty()).unwrap();
        assert_eq!(program::app(orders.clone()).oneshot(inbound).await.unwrap().status(), status);
    }
}
