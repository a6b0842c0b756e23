#[path = "../probe/capture.rs"]
mod capture;

use std::fmt::Debug;

use tokio::time::advance;
use tokio_test::{assert_pending, task::spawn};
use tower_outbound::{auth::KeyFile, preset};
use tracing::level_filters::LevelFilter;

use super::*;

/// No key of this file is in it, in plain or in base64: `key-1`, `key-2`, and with a user before them.
fn hidden(shown: &dyn Debug) {
    let shown = format!("{shown:?} {shown:#?}");
    for part in ["key-1", "key-2", "a2V5LT", "YW5uOmtleS0"] {
        assert!(!shown.contains(part), "{part} in {shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_key_is_in_a_log_an_error_or_debug() {
    let (log, subscriber) = capture::Capture::subscriber(LevelFilter::TRACE);
    // For all threads: what another test met first would else be off for this one, too.
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let server = Server::accepting("key-2");
    let (provided, _) = provided(millis(10), &[Fetch::Gives(100), Fetch::Gives(100), Fetch::Fails]);
    hidden(&provided);
    let keys = KeySource::from(provided);
    let current = keys.current().await.unwrap();
    hidden(&current);
    hidden(&FreshKey::new(current.key().clone()).with_lifetime(secs(1)));
    hidden(&keys);
    let layer = layer(keys.clone());
    hidden(&layer);
    let client = layer.layer(server.clone());
    hidden(&send_again(client.clone()).await.unwrap());
    advance(secs(100)).await;
    hidden(&send(&client).await.unwrap_err());
    hidden(&keys.last_error());
    for form in [Form::bearer(), Form::basic("ann").unwrap(), Form::query("k").unwrap()] {
        hidden(&form);
        hidden(&Rotating::new(form, ApiKey::new("key-1").unwrap()));
    }

    let path = std::env::temp_dir().join(format!("tower-outbound-hidden-{}", std::process::id()));
    std::fs::write(&path, "key-1").unwrap();
    hidden(&KeyFile::open(&path).unwrap());
    let file = KeySource::from_file(&path).unwrap();
    for (shown, name) in [
        (format!("{:?}", KeyFile::open(&path).unwrap()), "KeyFile { path: "),
        (format!("{file:?}"), r#"KeySource { source: "file""#),
        (format!("{keys:?}"), r#"KeySource { source: "provider""#),
        (format!("{current:?}"), "CurrentKey { generation: 1"),
        (format!("{:?}", super::provided(millis(10), &[Fetch::Lasting]).0), "RefreshingKey { ahead: "),
    ] {
        assert!(shown.starts_with(name), "{shown}");
    }
    file.current().await.unwrap();
    for content in ["key-2", "key-2 and more"] {
        std::fs::write(&path, content).unwrap();
        advance(KeyFile::DEFAULT_INTERVAL).await;
        file.current().await.unwrap();
    }
    std::fs::remove_file(&path).unwrap();
    hidden(&file.last_error());

    // The whole stack, its key in the query.
    let preset = preset::currency_rates(URI).unwrap().with_keys(keys).with_key_in_query("k");
    hidden(&preset);
    let service = preset.layer().unwrap().layer(probe::Probe::new([probe::Answer::Silent]));
    let mut call = spawn(service.oneshot(get(URI)));
    assert_pending!(call.poll());

    // What a server says of a request is shown without the key in use, whatever its source.
    #[cfg(feature = "client")]
    for keys in [file, KeySource::from(super::provided(Duration::ZERO, &[Fetch::Lasting]).0)] {
        let key = keys.current().await.unwrap().key().expose().to_owned();
        let client = preset::currency_rates(URI).unwrap().with_keys(keys);
        let client = client.client_with_service(probe::Probe::new([probe::Answer::Silent])).unwrap();
        assert_eq!(client.redacted(&format!("no such key: {key}!")), "no such key: [redacted]!");
    }

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
