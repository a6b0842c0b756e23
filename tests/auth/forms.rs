use http::HeaderName;
use support::{Scripted, ScriptedService};
use tower_outbound::preset;

use super::*;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

#[tokio::test]
async fn sends_a_key_of_each_source_in_each_placement() {
    let path = std::env::temp_dir().join(format!("tower-outbound-forms-{}", std::process::id()));
    std::fs::write(&path, "key-1").unwrap();
    let sources = || {
        [
            KeySource::from(ApiKey::new("key-1").unwrap()),
            KeySource::from_file(&path).unwrap(),
            KeySource::from(provided(Duration::ZERO, &[Fetch::Lasting]).0),
        ]
    };
    for (placement, name, value) in [
        (KeyPlacement::bearer(), "authorization", "Bearer key-1"),
        (KeyPlacement::header(X_API_KEY).unwrap(), "x-api-key", "key-1"),
        (KeyPlacement::basic("ann").unwrap(), "authorization", "Basic YW5uOmtleS0x"),
        (KeyPlacement::query("k").unwrap(), "", ""),
    ] {
        for keys in sources() {
            let shown = format!("{placement:?} {keys:?}");
            let probe = ScriptedService::new([Scripted::Status(200)]);
            let layer = layer(keys).with_placement(placement.clone());
            layer.layer(probe.clone()).oneshot(get(URI)).await.unwrap();
            let head = probe.seen().remove(0).head;
            if name.is_empty() {
                assert_eq!((head.uri.query(), head.headers.len()), (Some("k=key-1"), 0), "{shown}");
            } else {
                assert_eq!(head.headers[name], value, "{shown}");
                assert!(head.headers[name].is_sensitive() && head.uri.query().is_none(), "{shown}");
            }
        }
    }
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_preset_sends_a_key_of_each_source_in_each_placement() {
    let preset = || preset::currency_rates(URI).unwrap();
    let provider = || provided(millis(10), &[Fetch::Lasting]).0;
    let key = ApiKey::new("key-1").unwrap();
    for (preset, expected) in [
        (preset().with_keys(provider()), "Bearer key-1"),
        (
            preset().with_key_placement(KeyPlacement::header(X_API_KEY).unwrap()).with_keys(provider()),
            "key-1",
        ),
        (
            preset().with_api_key(key.clone()).with_key_placement(KeyPlacement::header(X_API_KEY).unwrap()),
            "key-1",
        ),
        (
            preset().with_api_key(key).with_key_placement(KeyPlacement::basic("ann").unwrap()),
            "Basic YW5uOmtleS0x",
        ),
        (
            preset().with_keys(RefreshingKey::new(|| async {
                Ok::<_, BoxError>(FreshKey::new(ApiKey::new("given").unwrap()))
            })),
            "Bearer given",
        ),
    ] {
        let probe = ScriptedService::new([Scripted::Status(200)]);
        let service = preset.layer().unwrap().layer(probe.clone());
        service.oneshot(get(URI)).await.unwrap();
        let head = probe.seen().remove(0).head;
        let sent = head.headers.get(AUTHORIZATION).or(head.headers.get(X_API_KEY)).unwrap();
        assert_eq!(sent, expected);
    }
    assert!(KeyPlacement::basic("a:b").is_err() && KeyPlacement::header(http::header::HOST).is_err());
}
