use std::fmt::Debug;

use tokio::time::advance;
use tokio_test::{assert_pending, task::spawn};
use tower_outbound::preset;
use tracing::level_filters::LevelFilter;

use super::{support::capture, *};

/// Asserts that `shown` contains no key of this file, in plain or in base64: `key-1`, `key-2`, also after a user's name.
fn hidden(shown: &dyn Debug) {
    let shown = format!("{shown:?} {shown:#?}");
    for part in ["key-1", "key-2", "a2V5LT", "YW5uOmtleS0"] {
        assert!(!shown.contains(part), "{part} in {shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_key_is_in_a_log_an_error_or_debug() {
    let (log, subscriber) = capture::Capture::subscriber(LevelFilter::TRACE);
    // The subscriber is set for all threads. Otherwise an event that another test caused first would be disabled here.
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let server = Server::accepting("key-2");
    let (provided, _) = provided(millis(10), &[Fetch::Gives(100), Fetch::Gives(100), Fetch::Fails]);
    hidden(&provided);
    let keys = KeySource::from(provided);
    let current = keys.current().await.unwrap();
    hidden(&current);
    hidden(&FreshKey::new(current.clone()).with_lifetime(secs(1)));
    hidden(&keys);
    let layer = layer(keys.clone());
    hidden(&layer);
    let client = layer.layer(server.clone());
    hidden(&send_again(client.clone()).await.unwrap());
    advance(secs(100)).await;
    hidden(&send(&client).await.unwrap_err());
    hidden(&keys.last_error());
    for placement in ["bearer", "basic:ann", "query:k"] {
        let placement = placement.parse().unwrap();
        hidden(&super::layer(ApiKey::new("key-1").unwrap()).with_placement(placement));
    }

    let path = std::env::temp_dir().join(format!("tower-outbound-hidden-{}", std::process::id()));
    std::fs::write(&path, "key-1").unwrap();
    let file = KeySource::from_file(&path).unwrap();
    for (shown, name) in [
        (format!("{file:?}"), r#"KeySource { source: "file""#),
        (format!("{keys:?}"), r#"KeySource { source: "provider""#),
        (format!("{current:?}"), "ApiKey(redacted)"),
        (format!("{:?}", super::provided(millis(10), &[Fetch::Lasting]).0), "RefreshingKey { timeout: "),
    ] {
        assert!(shown.starts_with(name), "{shown}");
    }
    file.current().await.unwrap();
    for content in ["key-2", "key-2 and more"] {
        std::fs::write(&path, content).unwrap();
        advance(KeySource::FILE_INTERVAL).await;
        file.current().await.unwrap();
    }
    std::fs::remove_file(&path).unwrap();
    hidden(&file.last_error());

    // The whole stack, its key in the query.
    let preset =
        preset::currency_rates(URI).unwrap().with_keys(keys).with_key_placement("query:k".parse().unwrap());
    hidden(&preset);
    let service =
        preset.layer().unwrap().layer(support::ScriptedService::new([support::Scripted::NoResponse]));
    let mut call = spawn(service.oneshot(get(URI)));
    assert_pending!(call.poll());

    let log = log.text();
    for event in [
        "key refresh begins",
        "key refreshed",
        "key refused by the server",
        "the key provider failed",
        "key changed",
        "the key file could not be read again",
    ] {
        assert!(log.contains(event), "{event} missing in {log}");
    }
    hidden(&log);
    assert!(log.contains("tower_outbound::auth") && log.contains("retry_in_ms=1000"), "{log}");
}
