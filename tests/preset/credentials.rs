//! Tests which servers receive a preset's credential, and where the request contains the credential.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::request;
use tower_outbound::{
    auth::{AppCredentials, FreshKey, RefreshingKey},
    call::DelayReason,
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
async fn key_with_query_placement_is_sent_only_in_the_query_parameter() {
    let presets: [PresetFn; 2] = [|url| preset::currency_rates(url), |url| preset::email_delivery(url)];
    for preset in presets {
        // The order of `with_key_placement` and `with_api_key` does not matter.
        for placement_first in [true, false] {
            let server = server().await;
            let preset = preset(&server.url()).unwrap();
            let client = match placement_first {
                true => preset
                    .with_key_placement("query:api_key".parse().unwrap())
                    .with_api_key(ApiKey::new("a&b").unwrap()),
                false => preset
                    .with_api_key(ApiKey::new("a&b").unwrap())
                    .with_key_placement("query:api_key".parse().unwrap()),
            }
            .client()
            .unwrap();
            status(&client, "/v1?q=1").await.unwrap();
            let seen = only_request(&server);
            assert_eq!(seen.path_and_query(), "/v1?q=1&api_key=a%26b");
            assert_eq!(seen.header("authorization"), None);
            assert!(seen.headers.values().all(|value| !value.to_str().unwrap().contains("a&b")));
        }
    }
}

#[tokio::test]
async fn authorize_closure_runs_for_every_attempt() {
    let server = Server::with_statuses(Wire::Http1, [503, 200]).await;
    let credentials = AppCredentials::new("app", key(), ApiKey::new("s3cret").unwrap()).unwrap();
    let client = preset::realtime_messaging(server.url())
        .unwrap()
        .with_retry(RetryLayer::new().with_backoff(ExponentialBackoff::new(MILLI, MILLI).unwrap()))
        .with_authorize(move |head| {
            let signature = format!("{}{}{}", head.method, head.uri.path(), credentials.secret().expose());
            head.headers.insert("x-app-id", credentials.app_id().parse()?);
            head.headers.insert("x-key", credentials.key().expose().parse()?);
            head.headers.insert("x-signature", signature.parse()?);
            Ok(())
        })
        .client()
        .unwrap();
    assert_eq!(status(&client, "/v1/events").await.unwrap(), 200);
    assert_eq!(server.seen().len(), 2);
    for seen in server.seen() {
        assert_eq!(seen.header("x-app-id"), Some("app"));
        assert_eq!(seen.header("x-key"), Some(KEY));
        assert_eq!(seen.header("x-signature"), Some("GET/v1/eventss3cret"));
        assert_eq!(seen.header("authorization"), None);
    }
}

#[tokio::test]
async fn client_sends_nothing_if_the_authorize_closure_fails() {
    let server = server().await;
    let client = preset_with_key(&server.url())
        .with_authorize(|_: &mut request::Parts| Err("no access to the vault".into()))
        .client()
        .unwrap();
    let error = status(&client, "/").await.unwrap_err();
    assert!(error.is_auth(), "{error:?}");
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "no access to the vault");
    let report = error.report().unwrap();
    assert_eq!((report.attempt_count(), report.stop_reason()), (1, Some(StopReason::NotRetryable)));
    assert_eq!(server.connections(), 0);
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
        .client()
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

#[tokio::test]
async fn preset_layer_sends_the_key_over_plaintext_if_allowed() {
    let layer = preset_with_key("http://api.example.com").with_plaintext().layer().unwrap();
    let service =
        ServiceBuilder::new().layer(layer).service_fn(|request: Request<ReplayBody<_>>| async move {
            assert_eq!(request.headers()["authorization"], format!("Bearer {KEY}"));
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        });
    service.oneshot(get("http://api.example.com/v1")).await.unwrap();
}

#[tokio::test]
async fn preset_layer_sends_no_key_to_another_origin() {
    let layer = preset_with_key("https://host").layer().unwrap();
    let service =
        ServiceBuilder::new().layer(layer).service_fn(|request: Request<ReplayBody<_>>| async move {
            assert!(!request.headers().contains_key("authorization"));
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        });
    service.oneshot(get("https://elsewhere/v1")).await.unwrap();
}

#[test]
fn debug_text_shows_no_key() {
    let credentials = AppCredentials::new("app", key(), key()).unwrap();
    let preset = preset_with_key("http://localhost");
    for preset in [
        preset.clone(),
        preset.clone().with_key_placement("query:key".parse().unwrap()),
        preset.with_authorize(move |_| {
            let _ = &credentials;
            Ok(())
        }),
    ] {
        let layer = preset.layer().unwrap();
        let client = preset.client().unwrap();
        let shown = format!("{preset:?} {preset:#?} {layer:?} {client:?}");
        assert!(
            shown.contains("StackBuilder") && shown.contains("localhost") && !shown.contains(KEY),
            "{shown}"
        );
    }
}
