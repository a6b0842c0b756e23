//! Finds the server's own request id in the headers of a response, and checks that it contains no key.

use http::{HeaderMap, HeaderName};

use crate::secret::Secret;

/// The maximum length of an id. Known services send up to 100 characters.
const MAX_LENGTH: usize = 128;

/// A text may end with the beginning of a key. This beginning is redacted if it has at least this many bytes.
#[cfg(feature = "client")]
const SHORTEST_BEGINNING: usize = 4;

/// Returns the values of the headers `names`, except those that cannot be an id. An id has at most [`MAX_LENGTH`]
/// characters, all of them visible ASCII.
pub(super) fn candidates<'a>(
    headers: &'a HeaderMap,
    names: &'a [HeaderName],
) -> impl Iterator<Item = &'a str> {
    // One iteration over the header names of the response costs less than a lookup for each known name.
    let any = headers.keys().any(|name| names.contains(name));
    let values = any.then(|| names.iter().filter_map(|name| headers.get(name))).into_iter().flatten();
    let is_id = |id: &&str| id.len() <= MAX_LENGTH && id.bytes().all(|byte| byte.is_ascii_graphic());
    values.filter_map(|value| value.to_str().ok()).filter(is_id)
}

/// The two latest keys that a call has sent: the key that a 401 rejected, and its replacement.
#[derive(Debug, Default)]
pub(super) struct SentKeys([Option<Secret>; 2]);

impl SentKeys {
    pub(super) fn add(&mut self, key: &Secret) {
        if self.0[0].as_ref() != Some(key) {
            self.0.swap(0, 1);
            self.0[0] = Some(key.clone());
        }
    }

    /// Returns whether `id` contains one of the keys.
    pub(super) fn are_in(&self, id: &str) -> bool {
        self.0.iter().flatten().any(|key| key.is_in(id))
    }

    /// Redacts the keys in `text`, but not their encoded forms. The text may be cut off within a key, so the beginning
    /// of a key is also redacted at the end of the text.
    #[cfg(feature = "client")]
    pub(super) fn redact(&self, text: &str) -> String {
        let mut keys: Vec<_> = self.0.iter().flatten().map(Secret::expose).collect();
        // Replaces the longer key first, because it may contain the shorter one.
        keys.sort_by_key(|key| std::cmp::Reverse(key.len()));
        keys.into_iter().fold(text.to_owned(), |text, key| {
            let mut text = text.replace(key, "[redacted]");
            // A beginning under `SHORTEST_BEGINNING` bytes is not redacted, because it could be an ordinary word.
            let beginnings = (SHORTEST_BEGINNING..key.len()).rev().filter_map(|length| key.get(..length));
            if let Some(beginning) = beginnings.into_iter().find(|beginning| text.ends_with(beginning)) {
                text.truncate(text.len() - beginning.len());
                text.push_str("[redacted]");
            }
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const FIRST: HeaderName = HeaderName::from_static("x-first");
    const SECOND: HeaderName = HeaderName::from_static("x-second");

    fn keys(sent: &[&str]) -> SentKeys {
        let mut keys = SentKeys::default();
        sent.iter().for_each(|key| keys.add(&Secret::new(key)));
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
}
