//! Tests that logs, errors and debug output contain no key.

use std::{error::Error as _, pin::Pin};

use support::{
    Scripted::{Headers, NoResponse, Status},
    ScriptedService, capture,
};
use tokio::time::advance;
use tokio_test::{assert_pending, task::spawn};
use tower::ServiceBuilder;
use tower_outbound::{Report, preset, request_id::RequestIdLayer};
use tracing::level_filters::LevelFilter;

use super::*;

/// The keys of [`key_provider`] and of the key file: as plain text, as base64, and as base64 after a user name.
const PROVIDER_KEYS: &[&str] = &["key-1", "key-2", "a2V5LT", "YW5uOmtleS0"];

/// Asserts that the debug output contains none of `secrets`.
fn assert_redacted(value: &dyn Debug, secrets: &[&str]) {
    let output = format!("{value:?} {value:#?}");
    for secret in secrets {
        assert!(!output.contains(secret), "the output contains the secret {secret}: {output}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_key_of_a_provider_or_file_appears_in_logs_errors_or_debug_output() {
    let (log, subscriber) = capture::Capture::subscriber(LevelFilter::TRACE);
    // The subscriber is global, because another test without a subscriber may emit the same event first. tracing would
    // then cache that no subscriber is interested in the event.
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let server = Server::accepting("key-2");
    let (provider, _) = key_provider(millis(10), &[Fetch::Expiring(100), Fetch::Expiring(100), Fetch::Fails]);
    assert_redacted(&provider, PROVIDER_KEYS);
    let keys = KeySource::from(provider);
    let current = keys.current().await.unwrap();
    assert_redacted(&current, PROVIDER_KEYS);
    assert_redacted(&FreshKey::new(current.clone()).with_lifetime(secs(1)), PROVIDER_KEYS);
    assert_redacted(&keys, PROVIDER_KEYS);
    let layer = layer(keys.clone());
    assert_redacted(&layer, PROVIDER_KEYS);
    let client = layer.layer(server.clone());
    assert_redacted(&send_with_resend(client.clone()).await.unwrap(), PROVIDER_KEYS);
    advance(secs(100)).await;
    assert_redacted(&send(&client).await.unwrap_err(), PROVIDER_KEYS);
    assert_redacted(&keys.last_error(), PROVIDER_KEYS);
    for placement in ["bearer", "basic:ann", "query:k"] {
        let placement = placement.parse().unwrap();
        assert_redacted(
            &super::layer(ApiKey::new("key-1").unwrap()).with_placement(placement),
            PROVIDER_KEYS,
        );
    }

    let path = std::env::temp_dir().join(format!("tower-outbound-redaction-{}", std::process::id()));
    std::fs::write(&path, "key-1").unwrap();
    let file = KeySource::from_file(&path).unwrap();
    for (output, start) in [
        (format!("{file:?}"), r#"KeySource { source: "file""#),
        (format!("{keys:?}"), r#"KeySource { source: "provider""#),
        (format!("{current:?}"), "ApiKey(redacted)"),
        (format!("{:?}", key_provider(millis(10), &[Fetch::Lasting]).0), "RefreshingKey { timeout: "),
    ] {
        assert!(output.starts_with(start), "{output}");
    }
    file.current().await.unwrap();
    for content in ["key-2", "key-2 and more"] {
        std::fs::write(&path, content).unwrap();
        advance(KeySource::FILE_INTERVAL).await;
        file.current().await.unwrap();
    }
    std::fs::remove_file(&path).unwrap();
    assert_redacted(&file.last_error(), PROVIDER_KEYS);

    // The debug output of a preset and of its calls also contains no key that is sent in the query.
    let preset =
        preset::currency_rates(URI).unwrap().with_keys(keys).with_key_placement("query:k".parse().unwrap());
    assert_redacted(&preset, PROVIDER_KEYS);
    let service = preset.layer().unwrap().layer(ScriptedService::new([NoResponse]));
    let mut call = spawn(service.oneshot(get(URI)));
    assert_pending!(call.poll());

    let log = log.text();
    for event in [
        "key refresh begins",
        "key refreshed",
        "key rejected by the server",
        "the key provider failed",
        "key changed",
        "the key file could not be read again",
    ] {
        assert!(log.contains(event), "the event `{event}` is missing in the log: {log}");
    }
    assert_redacted(&log, PROVIDER_KEYS);
    assert!(log.contains("tower_outbound::auth") && log.contains("retry_in_ms=1000"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn debug_output_never_contains_a_fixed_key() {
    let assert_redacted = |value: &dyn Debug| assert_redacted(value, &[KEY, "0123456789"]);
    assert_redacted(&key());
    assert_redacted(&KeyPlacement::query("api_key").unwrap());
    let (bearer, query) = (bearer_layer(URI), query_layer());
    assert_redacted(&bearer);
    assert_redacted(&query);
    assert_redacted(&bearer.layer(ScriptedService::new([Status(200)])));
    assert_redacted(&query.layer(ScriptedService::new([Status(200)])));

    for (output, start) in [
        (format!("{:?}", key()), "ApiKey(redacted)"),
        (format!("{bearer:?}"), "AuthLayer"),
        (format!("{:?}", bearer.layer(ScriptedService::new([Status(200)]))), "Auth {"),
        (format!("{:?}", KeySource::from(key())), r#"KeySource { source: "value""#),
    ] {
        assert!(output.starts_with(start), "{output}");
    }

    // The debug output of a client's future may contain the request.
    let pending = tower::service_fn(|request: Request<Content>| PendingFuture(request));
    let mut call = spawn(bearer.layer(pending).call(get(URI)));
    assert_pending!(call.poll());
    assert_redacted(&call);
    // The message of a client's error may contain the request head.
    let failing = tower::service_fn(|request: Request<Content>| async move {
        Err::<Response<Content>, _>(BoxError::from(format!("failed: {request:?}")))
    });
    let error = bearer.layer(failing).oneshot(get(URI)).await.unwrap_err();
    assert_redacted(&error);
    assert!(
        error.source().unwrap().to_string().contains("authorization"),
        "an error may contain the header name `authorization`"
    );

    let preset = preset::currency_rates(URI).unwrap().with_api_key(key());
    assert_redacted(&preset);
    let layer = preset.layer().unwrap();
    assert_redacted(&layer);
    assert_redacted(&preset.with_key_placement("query:api_key".parse().unwrap()).layer().unwrap());
    let mut call = spawn(layer.layer(ScriptedService::new([NoResponse])).call(get(URI)));
    assert_pending!(call.poll());
    assert_redacted(&call);
}

#[derive(Debug)]
#[allow(dead_code, reason = "read by Debug only")]
struct PendingFuture(Request<Content>);

impl Future for PendingFuture {
    type Output = Result<Response<Content>, BoxError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}

#[tokio::test]
async fn errors_for_invalid_keys_and_origins_contain_no_key() {
    for invalid in ["s3cret-0123456789\n", "s3cret 0123456789", "s3cret-0123456789ü", "\0s3cret-0123456789"]
    {
        let error = ApiKey::new(invalid).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(!text.contains("s3cret") && !text.contains("0123456789"), "{text}");
    }
    for url in ["http://me:s3cret@host", "s3cret-0123456789@host", "ftp://host?key=s3cret-0123456789"] {
        let error = Origin::parse(url).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(!text.contains("s3cret"), "{text}");
    }
    let error = AuthLayer::new(key(), origin("http://host")).unwrap_err();
    assert!(!format!("{error} {error:?}").contains(KEY));
}

#[tokio::test(start_paused = true)]
async fn server_request_id_is_reported_unless_it_contains_the_key() {
    async fn is_kept(auth: &AuthLayer, headers: &'static [(&'static str, &'static str)]) -> bool {
        let service = ServiceBuilder::new()
            .layer(RequestIdLayer::new())
            .layer(RetryLayer::new())
            .layer(auth)
            .service(ScriptedService::new([Headers(200, headers)]));
        let response = service.oneshot(get(URI)).await.unwrap();
        let report = response.extensions().get::<Report>().unwrap();
        let kept = report.attempts()[0].server_request_id.is_some();
        assert_eq!(report.server_request_id().is_some(), kept);
        kept
    }
    let provider = RefreshingKey::new(|| async { Ok::<_, BoxError>(FreshKey::new(key())) });
    let refreshing = AuthLayer::new(provider, origin(URI)).unwrap();
    for auth in [bearer_layer(URI), query_layer(), refreshing] {
        for (headers, expected) in [
            (&[("x-request-id", "0f8fad5b-d9cb-469f-a165-70867728950e")], true),
            (&[("x-request-id", "for:api_key=s3cret-0123456789;")], false),
            (&[("x-request-id", "%73%33cret%2D0123456789")], false),
            (&[("x-request-id", "two words")], false),
        ] {
            assert_eq!(is_kept(&auth, headers).await, expected, "{headers:?}");
        }
    }
}
