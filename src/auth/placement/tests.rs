use http::request;

use super::*;

#[test]
fn key_placement_parses_from_its_display_output() {
    for text in ["bearer", "header:x-api-key", "basic:ann", "basic:", "query:api_key"] {
        let placement: KeyPlacement = text.parse().unwrap();
        assert_eq!((placement.to_string().as_str(), placement.clone()), (text, placement));
    }
    assert_eq!(KeyPlacement::default(), KeyPlacement::bearer());
}

#[test]
fn error_of_an_invalid_key_placement_omits_the_key() {
    for (text, shown) in [
        ("header:x-api-key: s3cret", "header..."),
        ("header:x-api-key=s3cret", "header..."),
        ("query:api_key=s3cret", "query..."),
        ("basic:ann:s3cret", "ann:…"),
        ("s3cret", "s..."),
        ("cookie", "cookie"),
        ("bearer:s3cret", "bearer..."),
    ] {
        assert_eq!(text.parse::<KeyPlacement>().unwrap_err().value(), shown, "{text}");
    }
}

#[test]
fn key_placement_rejects_headers_that_frame_a_request() {
    for name in [
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ] {
        let error = KeyPlacement::header(HeaderName::from_static(name)).unwrap_err();
        assert_eq!((error.field(), error.value()), ("key header", name));
    }
}

fn put(key: &PlacedKey, request: request::Builder) -> request::Parts {
    let mut request = request.body(()).unwrap();
    key.put(&mut request).unwrap();
    request.into_parts().0
}

fn get() -> request::Builder {
    http::Request::get("https://host/")
}

fn placed(placement: &str, key: &str) -> PlacedKey {
    PlacedKey::new(&placement.parse().unwrap(), &ApiKey::new(key).unwrap())
}

#[test]
fn key_header_is_sensitive_and_does_not_replace_the_callers_header() {
    for (placement, name, value) in [
        ("bearer", AUTHORIZATION, "Bearer s3cret"),
        ("header:x-api-key", HeaderName::from_static("x-api-key"), "s3cret"),
    ] {
        let key = placed(placement, "s3cret");
        let head = put(&key, get());
        assert_eq!(head.headers[&name], value);
        assert!(head.headers[&name].is_sensitive() && !format!("{head:?}").contains("s3cret"));
        assert_eq!(put(&key, get().header(&name, "own")).headers[&name], "own");
    }
}

/// The test vectors are from RFC 7617 section 2 and RFC 4648 section 10.
#[test]
fn basic_credential_matches_the_examples_of_rfc_7617_and_rfc_4648() {
    let head = put(&placed("basic:Aladdin", "opensesame"), get());
    assert_eq!(head.headers[AUTHORIZATION], "Basic QWxhZGRpbjpvcGVuc2VzYW1l");
    assert!(head.headers[AUTHORIZATION].is_sensitive());
    for (plain, encoded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
    {
        let mut out = String::new();
        base64(plain.as_bytes(), &mut out);
        assert_eq!(out, encoded);
    }
}

#[test]
fn key_is_appended_to_the_query_unless_the_parameter_is_present() {
    let key = PlacedKey::new(&KeyPlacement::query("api key").unwrap(), &ApiKey::new("a&b=c/%").unwrap());
    for (before, after) in [
        ("https://host", "https://host/?api%20key=a%26b%3Dc%2F%25"),
        ("https://host/v1?", "https://host/v1?api%20key=a%26b%3Dc%2F%25"),
        ("https://host/v1?q=1", "https://host/v1?q=1&api%20key=a%26b%3Dc%2F%25"),
        (
            "https://host/v1?my+api+key=1&q=api+key",
            "https://host/v1?my+api+key=1&q=api+key&api%20key=a%26b%3Dc%2F%25",
        ),
        ("https://host/v1?api%20key=own", "https://host/v1?api%20key=own"),
        ("https://host/v1?q&api+key", "https://host/v1?q&api+key"),
        ("https://host/v1?%61pi%20key=own", "https://host/v1?%61pi%20key=own"),
    ] {
        assert_eq!(put(&key, http::Request::get(before)).uri, after);
    }
}
