//! Tests the layers in the builder of octocrab, a GitHub client.

use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tower_outbound::{
    BoxError,
    test_util::{ScriptedResponse, ScriptedServer, ScriptedService},
};

/// The octocrab program that the crate's guide shows.
mod program {
    use std::time::Duration;

    use http::Uri;
    use hyper_util::{
        client::legacy::{Client, connect::Connect},
        rt::TokioExecutor,
    };
    use octocrab::{AuthState, Octocrab, OctocrabBuilder, service::middleware::base_uri::BaseUriLayer};
    use tower::ServiceBuilder;
    use tower_outbound::{
        BoxError, Quota,
        limit::{LocalLimiter, RateLimitLayer},
        request_id::RequestIdLayer,
        retry::RetryLayer,
        timeout::TotalTimeoutLayer,
    };

    pub fn github<C>(connector: C) -> Result<Octocrab, BoxError>
    where
        C: Connect + Clone + Send + Sync + 'static,
    {
        let stack = ServiceBuilder::new()
            .layer(TotalTimeoutLayer::new(Duration::from_secs(60))?)
            .layer(RetryLayer::new())
            .layer(RateLimitLayer::new(LocalLimiter::paced_window(Quota::per_minute(80)?)))
            .service(Client::builder(TokioExecutor::new()).build(connector));
        let github = OctocrabBuilder::new_empty()
            .with_service(stack)
            .with_layer(&RequestIdLayer::new())
            .with_layer(&BaseUriLayer::new(Uri::from_static("https://api.github.com")))
            .with_auth(AuthState::None)
            .build()?;
        Ok(github)
    }
}

/// The program calls `https://api.github.com`. Its connector connects to the test server instead.
#[tokio::test]
async fn example_program_of_the_guide_retries_after_a_503_and_a_post_after_a_429() -> Result<(), BoxError> {
    let hello = || ScriptedResponse::status(200).with_body(json!({ "message": "hello" }).to_string());
    let throttled = ScriptedResponse::status(429).with_header("retry-after-ms", "150");
    let service = ScriptedService::new([503.into(), hello(), throttled, hello()]);
    let server = ScriptedServer::start(service.clone()).await?;
    let address = server.url().replace("http://", "");
    let connector = tower::service_fn(move |_: http::Uri| {
        let stream = TcpStream::connect(address.clone());
        Box::pin(async { stream.await.map(TokioIo::new) })
    });
    let github = program::github(connector)?;
    let zen: Value = github.get("/zen", None::<&()>).await?;
    assert_eq!(zen, json!({ "message": "hello" }));
    let _: Value = github.post("/issues", Some(&json!({ "title": "x" }))).await?;
    let seen = service.seen();
    let methods: Vec<_> = seen.iter().map(|seen| seen.head.method.as_str()).collect();
    assert_eq!(methods, ["GET", "GET", "POST", "POST"]);
    let ids: Vec<_> = seen.iter().map(|seen| seen.header("x-request-id")).collect();
    assert!(ids[0].is_some() && ids[0] == ids[1] && ids[2] == ids[3] && ids[1] != ids[2], "{ids:?}");
    assert!(seen[3].at - seen[2].at >= std::time::Duration::from_millis(150));
    Ok(())
}
