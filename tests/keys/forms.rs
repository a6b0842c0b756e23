use http::HeaderName;
use probe::{Answer, Probe};
use tower_outbound::{auth::KeyFile, preset};

use super::*;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

#[tokio::test]
async fn every_form_takes_its_key_from_every_source() {
    let path = std::env::temp_dir().join(format!("tower-outbound-forms-{}", std::process::id()));
    std::fs::write(&path, "key-1").unwrap();
    let sources = || {
        [
            KeySource::from(ApiKey::new("key-1").unwrap()),
            KeySource::from(KeyFile::open(&path).unwrap()),
            KeySource::from(provided(Duration::ZERO, &[Fetch::Lasting]).0),
        ]
    };
    for (form, name, value) in [
        (Form::bearer(), "authorization", "Bearer key-1"),
        (Form::header(X_API_KEY).unwrap(), "x-api-key", "key-1"),
        (Form::basic("ann").unwrap(), "authorization", "Basic YW5uOmtleS0x"),
        (Form::query("k").unwrap(), "", ""),
    ] {
        for keys in sources() {
            let shown = format!("{form:?} {keys:?}");
            let probe = Probe::new([Answer::Is(200)]);
            let auth = Rotating::new(form.clone(), keys);
            let layer = AuthLayer::with(auth, Origin::parse(URI).unwrap()).unwrap();
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
async fn a_preset_takes_every_form_and_source() {
    let preset = || preset::currency_rates(URI).unwrap();
    let provider = || provided(millis(10), &[Fetch::Lasting]).0;
    let key = ApiKey::new("key-1").unwrap();
    for (preset, expected) in [
        (preset().with_keys(provider()), "Bearer key-1"),
        (preset().with_key_in_header(X_API_KEY).with_keys(provider()), "key-1"),
        (preset().with_api_key(key.clone()).with_key_in_header(X_API_KEY), "key-1"),
        (preset().with_api_key(key).with_key_as_password("ann"), "Basic YW5uOmtleS0x"),
        (
            preset().with_key_provider(|| async {
                Ok::<_, BoxError>(FreshKey::new(ApiKey::new("given").unwrap()))
            }),
            "Bearer given",
        ),
    ] {
        let probe = Probe::new([Answer::Is(200)]);
        let service = preset.layer().unwrap().layer(probe.clone());
        service.oneshot(get(URI)).await.unwrap();
        let head = probe.seen().remove(0).head;
        let sent = head.headers.get(AUTHORIZATION).or(head.headers.get(X_API_KEY)).unwrap();
        assert_eq!(sent, expected);
    }
    for preset in [preset().with_key_as_password("a:b"), preset().with_key_in_header(http::header::HOST)] {
        assert!(preset.with_api_key(ApiKey::new("x").unwrap()).layer().is_err());
    }
}
