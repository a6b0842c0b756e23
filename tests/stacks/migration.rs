//! Compiles and runs the programs of the guide's page on migration, before and after. The server on loopback records
//! the requests.
#![allow(clippy::unwrap_used, reason = "a test")]

#[allow(dead_code, reason = "the servers of another test binary")]
#[path = "../error/peer.rs"]
mod peer;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Extensions, HeaderName, Method};
use reqwest_012::redirect::Policy;
use reqwest_middleware_04::{ClientBuilder, Error::Middleware as OfMiddleware, Middleware, Next};
use tower_outbound::{
    ApiKey, Client, Error, ErrorKind, ExponentialBackoff, Quota, Report,
    auth::KeyPlacement,
    limit::LocalLimiter,
    retry::RetryLayer,
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

/// A stack over reqwest 0.12, with a key in `x-api-key` and a short backoff.
struct Over012 {
    http: reqwest_012::ClientBuilder,
    limiter: LocalLimiter,
    outer: Noted,
    inner: Noted,
}

/// A middleware that notes whether each request has the extension `u8`.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<bool>>>);

#[async_trait::async_trait]
impl Middleware for Noted {
    async fn handle(
        &self,
        request: reqwest_012::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware_04::Result<reqwest_012::Response> {
        self.0.lock().unwrap().push(extensions.get::<u8>().is_some());
        next.run(request, extensions).await
    }
}

impl Over012 {
    fn new(redirects: Policy) -> Self {
        let http = reqwest_012::Client::builder().no_proxy().redirect(redirects);
        let limiter = LocalLimiter::token_bucket(Quota::per_second(1_000).unwrap());
        Self { http, limiter, outer: Noted::default(), inner: Noted::default() }
    }

    /// Sends a request whose attempts may take 100 ms. Returns the error of the stack.
    async fn send(self, method: Method, url: &str) -> Result<reqwest_012::Response, Error> {
        let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(1)).unwrap();
        let stack = Client::builder(url).unwrap().with_api_key(ApiKey::new("s3cret").unwrap());
        let name = HeaderName::from_static("x-api-key");
        let stack = stack.with_key_placement(KeyPlacement::header(name).unwrap()).with_limiter(self.limiter);
        let stack = stack.with_retry(RetryLayer::new().with_backoff(backoff)).layer().unwrap();
        let client = ClientBuilder::new(self.http.build().unwrap())
            .with(self.outer)
            .with(outbound::Outbound(stack))
            .with(self.inner)
            .build();
        let request = client.request(method, url).timeout(Duration::from_millis(100));
        match request.with_extension(7_u8).send().await {
            Ok(response) => Ok(response),
            Err(OfMiddleware(error)) => Err(error.downcast().unwrap()),
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Each case is a row of the table in the guide.
#[tokio::test]
async fn reqwest_012_retries_as_the_guide_states_and_calls_the_middlewares_in_order() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let refusing = socket.local_addr().unwrap();
    let closing = peer::serve(peer::close);
    let silent = peer::serve(|mut stream| async move {
        peer::read_head(&mut stream).await;
        std::future::pending().await
    });
    for (name, address, method, kind, attempts) in [
        ("refused", refusing, Method::POST, ErrorKind::ConnectRefused, 3),
        ("closed after a POST", closing, Method::POST, ErrorKind::Closed, 1),
        ("closed after a GET", closing, Method::GET, ErrorKind::Closed, 3),
        ("timeout of a POST", silent, Method::POST, ErrorKind::Other, 1),
        ("timeout of a GET", silent, Method::GET, ErrorKind::Other, 3),
    ] {
        let stack = Over012::new(Policy::none());
        let (outer, inner, limiter) = (stack.outer.clone(), stack.inner.clone(), stack.limiter.clone());
        let error = stack.send(method, &format!("http://{address}")).await.unwrap_err();
        let report = error.report().unwrap();
        assert_eq!((error.kind(), report.attempt_count()), (kind, attempts), "{name}: {error:?}");
        assert!(!error.is_timeout(), "{name}: the docs state that the timeout is not recognized");
        assert_eq!(*outer.0.lock().unwrap(), [true], "{name}");
        assert_eq!(*inner.0.lock().unwrap(), vec![true; attempts], "{name}");
        assert_eq!(limiter.snapshot().granted, u64::try_from(attempts).unwrap(), "{name}");
    }
}

#[tokio::test]
async fn reqwest_012_returns_a_redirect_with_policy_none_and_otherwise_sends_the_key_along() {
    let (target, elsewhere) = server([ScriptedResponse::status(200)]).await;
    for (policy, status, followed) in [(Policy::none(), 302, 0), (Policy::limited(5), 200, 1)] {
        let redirect = ScriptedResponse::status(302).with_header("location", &elsewhere.url());
        let (_, redirecting) = server([redirect]).await;
        let stack = Over012::new(policy);
        let limiter = stack.limiter.clone();
        let response = stack.send(Method::GET, &redirecting.url()).await.unwrap();
        assert_eq!((response.status().as_u16(), target.calls()), (status, followed));
        assert_eq!(limiter.snapshot().granted, 1, "the limiter counts only the first request");
    }
    assert_eq!(target.seen()[0].header("x-api-key"), Some("s3cret"));
}
