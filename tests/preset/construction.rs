//! Tests the errors at the construction of a preset's layer or client.

use tower_outbound::auth::Origin;

use super::*;

#[test]
fn attempt_timeout_longer_than_the_total_timeout_is_rejected() {
    let preset = preset_with_key("https://host").with_total_timeout(SECOND).with_attempt_timeout(2 * SECOND);
    let error = preset.layer().unwrap_err();
    assert_eq!((error.field(), error.value()), ("attempt timeout", "2s"));
    assert!(error.to_string().contains("1s"), "{error}");
    assert!(
        preset.with_attempt_timeout(SECOND).layer().is_ok(),
        "an attempt timeout equal to the total timeout is valid"
    );
    assert!(
        preset_with_key("https://host").with_total_timeout(SECOND).layer().is_ok(),
        "the default attempt timeout is lowered to the total timeout"
    );
}

#[test]
fn preset_with_a_key_rejects_an_http_url_unless_loopback_or_allowed() {
    for url in ["http://api.example.com", "http://10.0.0.1:8080", "http://127.0.0.1.example.com"] {
        let preset = preset_with_key(url);
        let error = preset.client().unwrap_err();
        assert!(error.to_string().contains(url), "{error}");
        assert!(preset.clone().with_key_placement("query:key".parse().unwrap()).layer().is_err());
        assert!(preset.clone().with_authorize(|_: &mut http::request::Parts| Ok(())).layer().is_err());
        assert!(preset.with_plaintext().client().is_ok());
    }
    for url in ["https://api.example.com", "http://localhost:1", "http://127.0.0.1", "http://[::1]:8080/api"]
    {
        assert!(preset_with_key(url).layer().is_ok(), "{url}");
    }
}

#[test]
fn builder_without_a_credential_setter_returns_an_error_that_names_the_setters() {
    let error = StackBuilder::new("https://api.example.com").unwrap().layer().unwrap_err();
    assert_eq!((error.field(), error.value()), ("credential", "none"));
    for setter in ["with_api_key_env", "with_signature", "without_credential()"] {
        assert!(error.to_string().contains(setter), "{error}");
    }
}

#[test]
fn preset_accepts_an_http_url_if_there_is_no_credential() {
    let other_origin = Origin::parse("http://elsewhere.example.com").unwrap();
    let preset =
        StackBuilder::new("http://api.example.com").unwrap().with_name("custom").without_credential();
    assert!(preset.client().is_ok());
    let allowed = preset.with_allowed_origin(other_origin);
    assert!(allowed.layer().is_ok());
}
