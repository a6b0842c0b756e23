//! Tests this crate's layers between kube's own layers. kube's layers add the base URL and the credential. This crate's
//! layers add the request id, timeouts, retries and the rate limit.
#![allow(clippy::unwrap_used, reason = "a test")]

use tower_outbound::test_util::{ScriptedResponse, ScriptedServer, ScriptedService};

use self::program::client;

/// The kube program that the crate's guide shows.
mod program {
    use std::time::Duration;

    use hyper_util::{client::legacy, rt::TokioExecutor};
    use kube::{Client, Config, client::ConfigExt};
    use tower::ServiceBuilder;
    use tower_outbound::{
        BoxError, Quota,
        limit::{LocalLimiter, RateLimitLayer},
        request_id::RequestIdLayer,
        retry::RetryLayer,
        timeout::TotalTimeoutLayer,
    };

    pub fn client(config: Config) -> Result<Client, BoxError> {
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .layer(RequestIdLayer::new())
            .layer(TotalTimeoutLayer::new(Duration::from_secs(60))?)
            .layer(RetryLayer::new())
            .layer(RateLimitLayer::new(LocalLimiter::paced_window(Quota::per_second(50)?)))
            .option_layer(config.auth_layer()?)
            .map_err(BoxError::from)
            .service(legacy::Client::builder(TokioExecutor::new()).build_http());
        Ok(Client::new(service, config.default_namespace))
    }
}

#[tokio::test]
async fn kube_call_sends_the_same_request_id_and_credential_in_its_retry() {
    let version = serde_json::json!({
        "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
    });
    let script = [
        ScriptedResponse::status(503).with_header("retry-after-ms", "1"),
        ScriptedResponse::status(200).with_body(version.to_string()),
    ];
    let service = ScriptedService::new(script);
    let server = ScriptedServer::start(service.clone()).await.unwrap();
    let mut config = kube::Config::new(server.url().parse().unwrap());
    config.auth_info.token = Some("t0ken".to_owned().into());

    let call = tokio::spawn(async move { client(config).unwrap().apiserver_version().await });
    assert_eq!(call.await.unwrap().unwrap().minor, "36");
    let seen = service.seen();
    let ids: Vec<_> = seen.iter().map(|seen| seen.header("x-request-id").unwrap()).collect();
    assert!(ids.len() == 2 && ids[0] == ids[1], "{ids:?}");
    assert!(seen.iter().all(|seen| seen.header("authorization") == Some("Bearer t0ken")));
}
