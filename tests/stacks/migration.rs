//! Compiles and runs the programs of the guide's page on migration, before and after. The server on loopback records
//! the requests.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use tower_outbound::{
    ApiKey, Report,
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

mod outbound {
    use http::{Extensions, Request, Response};
    use reqwest_012::{Body, ResponseBuilderExt};
    use reqwest_middleware_04::{Error, Middleware, Next, Result};
    use tower::{Layer, ServiceExt, service_fn};
    use tower_outbound::{body::ReplayBody, stack::StackLayer};

    /// Runs a stack around the middlewares that are added after it.
    pub struct Outbound(pub StackLayer);

    #[async_trait::async_trait]
    impl Middleware for Outbound {
        async fn handle(
            &self,
            request: reqwest_012::Request,
            extensions: &mut Extensions,
            next: Next<'_>,
        ) -> Result<reqwest_012::Response> {
            let located = Response::builder().url(request.url().clone()).body(());
            let attempt = service_fn(|request: Request<ReplayBody<Body>>| {
                let (next, mut extensions) = (next.clone(), extensions.clone());
                async move {
                    let request = request.map(Body::wrap).try_into()?;
                    let response = next.run(request, &mut extensions).await;
                    response.map(Response::<Body>::from).map_err(Error::without_url)
                }
            });
            let mut request = Request::try_from(request)?;
            request.extensions_mut().extend(extensions.clone());
            let call = self.0.layer(attempt).oneshot(request);
            let mut response = call.await.map_err(Error::middleware)?;
            let located = located.map_err(Error::middleware)?.into_parts().0;
            response.extensions_mut().extend(located.extensions);
            Ok(response.map(Body::wrap).into())
        }
    }
}

mod reqwest_012_client {
    use reqwest_012::redirect::Policy;
    use reqwest_middleware_04::{ClientBuilder, ClientWithMiddleware, Error};
    use tower_outbound::{ApiKey, BoxError, Client};

    use super::outbound::Outbound;

    pub fn client(base: &str, key: ApiKey) -> Result<ClientWithMiddleware, BoxError> {
        let http = reqwest_012::Client::builder().redirect(Policy::none()).build()?;
        let stack = Client::builder(base)?.with_api_key(key).layer()?;
        Ok(ClientBuilder::new(http).with(Outbound(stack)).build())
    }

    pub async fn create(client: &ClientWithMiddleware, base: &str) -> Result<u16, Error> {
        let response = client.post(format!("{base}/orders")).body("{}").send().await?;
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

#[tokio::test]
async fn reqwest_012_retries_a_rejected_post_with_its_body_and_request_id() {
    let rejected = ScriptedResponse::status(429).with_header("retry-after-ms", "20");
    let (service, server) = server([rejected, ScriptedResponse::status(201)]).await;
    let client = reqwest_012_client::client(&server.url(), ApiKey::new("s3cret").unwrap()).unwrap();
    let url = format!("{}/orders?a=b", server.url());
    let response = client.post(&url).body("{}").send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.url().as_str()), (201, &url[..]));
    assert_eq!(response.extensions().get::<Report>().unwrap().attempt_count(), 2);

    let seen = service.seen();
    let id = seen[0].header("x-request-id").unwrap();
    assert_eq!((seen.len(), seen[1].header("x-request-id"), id.len()), (2, Some(id), 36));
    assert!(seen.iter().all(|seen| seen.body.as_deref() == Some(b"{}")), "{seen:?}");
    assert!(seen[1].at - seen[0].at >= Duration::from_millis(20));
}

#[tokio::test]
async fn reqwest_012_returns_the_503_of_a_post() {
    let (service, server) = server(unavailable()).await;
    let client = reqwest_012_client::client(&server.url(), ApiKey::new("s3cret").unwrap()).unwrap();
    assert_eq!(reqwest_012_client::create(&client, &server.url()).await.unwrap(), 503);
    let seen = service.seen();
    assert_eq!((seen.len(), seen[0].header("authorization")), (1, Some("Bearer s3cret")));
}
