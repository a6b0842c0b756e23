//! Tests which servers receive a preset's credential, and where the request contains the credential.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tower_outbound::{
    auth::{FreshKey, RefreshingKey},
    call::DelayReason,
    transport::TransportConfig,
};

use super::*;

#[tokio::test]
async fn client_sends_the_key_from_an_environment_variable() {
    let server = server().await;
    // Cargo sets the environment variable `CARGO_PKG_NAME` for every test.
    let client =
        preset::email_delivery(server.url()).unwrap().with_api_key_env("CARGO_PKG_NAME").client().unwrap();
    status(&client, "/").await.unwrap();
    assert_eq!(only_request(&server).header("authorization"), Some("Bearer tower-outbound"));
}

#[tokio::test]
async fn client_replaces_a_rejected_key_and_resends_the_request_once() {
    let server = Server::start(Wire::Http1, |number, seen| async move {
        let status = if seen.header("authorization") == Some("Bearer key-2") { 200 } else { 401 };
        Some(reply(status, format!("response {number}")))
    })
    .await;
    let key_count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&key_count);
    let client = preset::email_delivery(server.url())
        .unwrap()
        .with_keys(RefreshingKey::new(move || {
            let key = ApiKey::new(format!("key-{}", counter.fetch_add(1, Ordering::Relaxed) + 1));
            async { Ok::<_, BoxError>(FreshKey::new(key?)) }
        }))
        // With one connection, the resend waits until the connection is idle again.
        .client_with_transport(TransportConfig::new().with_max_connections(1))
        .unwrap();
    let response = within(client.post("/v1/resources").body("a letter")).await.unwrap();
    assert_eq!(response.status(), 200);
    let report = response.report().unwrap();
    let attempt = &report.attempts()[0];
    assert_eq!((report.attempt_count(), report.stop_reason()), (2, Some(StopReason::Success)));
    assert_eq!((attempt.delay, attempt.delay_reason), (Some(Duration::ZERO), Some(DelayReason::KeyReplaced)));
    let seen = server.seen();
    assert!(
        seen.iter().map(|seen| seen.header("authorization")).eq([Some("Bearer key-1"), Some("Bearer key-2")])
    );
    assert!(seen.iter().all(|seen| seen.method == "POST" && seen.body == "a letter"));
    assert_eq!(seen[0].header("x-request-id"), seen[1].header("x-request-id"));
    assert_eq!(server.connections(), 1, "the client drains the 401 response, and reuses the connection");
    // Calls after the replacement send the new key.
    assert_eq!(status(&client, "/").await.unwrap(), 200);
    assert_eq!((server.seen().len(), key_count.load(Ordering::Relaxed)), (3, 2));
}

#[tokio::test]
async fn client_without_credential_sends_no_key_unless_a_later_setter_adds_a_key() {
    let server = server().await;
    let preset = StackBuilder::new(server.url())
        .unwrap()
        .with_name("custom")
        .with_api_key_env("TOWER_OUTBOUND_NOT_SET");
    let client = preset.clone().without_credential().client().unwrap();
    assert_eq!(status(&client, "/v1").await.unwrap(), 200);
    let seen = only_request(&server);
    assert_eq!((seen.header("authorization"), seen.path_and_query()), (None, "/v1"));
    let keyed = preset.without_credential().with_api_key(key()).client().unwrap();
    status(&keyed, "/").await.unwrap();
    assert!(server.seen()[1].header("authorization").is_some(), "the later setter `with_api_key` wins");
}
