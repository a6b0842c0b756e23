use http::HeaderValue;

use super::*;

const FIRST: HeaderName = HeaderName::from_static("x-first");
const SECOND: HeaderName = HeaderName::from_static("x-second");

fn keys(sent: &[&str]) -> SentKeys {
    let mut keys = SentKeys::default();
    sent.iter().for_each(|key| keys.add(&Secret::new(key), false));
    keys
}

#[test]
fn server_id_has_at_most_128_visible_ascii_characters() {
    for (id, kept) in [
        ("0f8fad5b-d9cb-469f-a165-70867728950e".to_owned(), true),
        ("x".repeat(128), true),
        ("x".repeat(129), false),
        ("two words".to_owned(), false),
        ("t\tb".to_owned(), false),
        ("é".to_owned(), false),
    ] {
        let value = HeaderValue::from_bytes(id.as_bytes()).unwrap();
        let headers = HeaderMap::from_iter([(FIRST, value)]);
        assert_eq!(candidates(&headers, &[SECOND, FIRST]).eq([id.as_str()]), kept, "{id}");
    }
}

#[test]
fn server_id_of_the_first_configured_header_is_preferred() {
    let value = HeaderValue::from_static;
    let headers = HeaderMap::from_iter([(FIRST, value("a")), (SECOND, value("b"))]);
    assert!(candidates(&headers, &[SECOND, FIRST]).eq(["b", "a"]));
    assert_eq!(candidates(&headers, &[]).count(), 0);
}

#[test]
fn server_id_that_contains_one_of_the_two_latest_keys_is_dropped() {
    let sent = keys(&["k0", "k1", "k2", "k1", "k1"]);
    for (id, kept) in [("k0", true), ("id-k1", false), ("%6b2", false), ("k3", true)] {
        assert_eq!(!sent.are_in(id), kept, "{id}");
    }
    assert!(!SentKeys::default().are_in("k1"));
}

#[cfg(feature = "client")]
#[test]
fn redacts_the_longer_of_two_overlapping_keys_first() {
    for sent in [["s3cret", "s3cret-2"], ["s3cret-2", "s3cret"]] {
        assert_eq!(keys(&sent).redact("a s3cret, s3cret-2"), "a [redacted], [redacted]");
    }
}

#[cfg(feature = "client")]
#[test]
fn redacts_a_key_that_is_cut_off_at_the_end_of_the_text() {
    let sent = keys(&["s3cret-of-the-key"]);
    for (text, redacted) in [
        ("wrong s3cret-of-th", "wrong [redacted]"),
        ("wrong s3cr", "wrong [redacted]"),
        ("wrong s3c", "wrong s3c"),
        ("s3cret-of is wrong", "s3cret-of is wrong"),
    ] {
        assert_eq!(sent.redact(text), redacted);
    }
}
