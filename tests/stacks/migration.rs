//! Compiles and runs the programs of the guide's page on migration, before and after. The server on loopback records
//! the requests.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use tower_outbound::{
    ApiKey,
    test_util::{ScriptedResponse, ScriptedServer, ScriptedService},
};

mod reqwest_retry_before {
    use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error};
    use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};

    pub fn client() -> ClientWithMiddleware {
        let policy = ExponentialBackoff::builder().build_with_max_retries(2);
        ClientBuilder::new(reqwest::Client::new())
            .with(RetryTransientMiddleware::new_with_policy(policy))
            .build()
    }

    pub async fn create(client: &ClientWithMiddleware, base: &str, key: &str) -> Result<u16, Error> {
        let response = client.post(format!("{base}/orders")).bearer_auth(key).body("{}").send().await?;
        Ok(response.status().as_u16())
    }
}

mod reqwest_retry_after {
    use tower_outbound::{
        ApiKey, Client, Error, InvalidConfig,
        adapter::{Reqwest, SendWith},
        stack::StackService,
    };

    type Orders = StackService<Reqwest>;

    /// Build `http` with `redirect::Policy::none()`.
    pub fn orders(http: &reqwest::Client, base: &str, key: ApiKey) -> Result<Orders, InvalidConfig> {
        Client::builder(base)?.with_api_key(key).with_max_attempts(3).reqwest(http.clone())
    }

    pub async fn create(http: &reqwest::Client, orders: &Orders, base: &str) -> Result<u16, Error> {
        let response = http.post(format!("{base}/orders")).body("{}").send_with(orders).await?;
        Ok(response.status().as_u16())
    }
}

mod backoff_before {
    use backoff::{ExponentialBackoff, future::retry};

    pub async fn latest(http: &reqwest::Client, url: &str) -> Result<String, reqwest::Error> {
        retry(ExponentialBackoff::default(), || async {
            let response = http.get(url).send().await?.error_for_status()?;
            Ok(response.text().await?)
        })
        .await
    }
}

mod backoff_after {
    use tower_outbound::{Client, client::ResponseError};

    pub async fn latest(rates: &Client) -> Result<String, ResponseError> {
        rates.get("/latest").fetch_text().await
    }
}

async fn server(
    script: impl IntoIterator<Item: Into<ScriptedResponse>>,
) -> (ScriptedService, ScriptedServer) {
    let service = ScriptedService::new(script);
    (service.clone(), ScriptedServer::start(service).await.unwrap())
}

/// Responds 503 with a requested delay, and then 201.
fn unavailable() -> [ScriptedResponse; 2] {
    [ScriptedResponse::status(503).with_header("retry-after", "1"), ScriptedResponse::status(201)]
}

#[tokio::test]
async fn reqwest_retry_resends_a_post_after_a_503_before_the_requested_delay() {
    let (service, server) = server(unavailable()).await;
    let client = reqwest_retry_before::client();
    assert_eq!(reqwest_retry_before::create(&client, &server.url(), "s3cret").await.unwrap(), 201);
    let seen = service.seen();
    assert_eq!(seen.len(), 2);
    // The server has requested a delay of 1 s.
    assert!(seen[1].at - seen[0].at < Duration::from_secs(1));
}

#[tokio::test]
async fn layers_over_reqwest_return_the_503_of_a_post() {
    let (service, server) = server(unavailable()).await;
    let (base, key) = (server.url(), ApiKey::new("s3cret").unwrap());
    let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let orders = reqwest_retry_after::orders(&http, &base, key).unwrap();
    assert_eq!(reqwest_retry_after::create(&http, &orders, &base).await.unwrap(), 503);
    assert_eq!(service.calls(), 1);
}

#[tokio::test]
async fn backoff_retries_a_404_and_the_client_does_not() {
    let script = || [ScriptedResponse::status(404), ScriptedResponse::status(200).with_body("1.08")];
    let (before, url) = server(script()).await;
    let latest = backoff_before::latest(&reqwest::Client::new(), &format!("{}/latest", url.url())).await;
    assert_eq!((latest.unwrap().as_str(), before.calls()), ("1.08", 2));

    let (after, url) = server(script()).await;
    let rates = tower_outbound::Client::builder(url.url()).unwrap().without_credential();
    let rates = rates.with_total_timeout(Duration::from_secs(5)).client().unwrap();
    assert_eq!(backoff_after::latest(&rates).await.unwrap_err().status(), Some(http::StatusCode::NOT_FOUND));
    assert_eq!(after.calls(), 1);
}
