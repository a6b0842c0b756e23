use std::{fmt, sync::Arc};

use percent_encoding::percent_decode_str;
use zeroize::Zeroizing;

/// A secret text. Its memory is overwritten when its last clone is dropped.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Arc<Forms>);

#[derive(PartialEq, Eq)]
struct Forms {
    plain: Zeroizing<Box<str>>,
    /// The form that requests send, if it does not contain the plain text.
    encoded: Option<Zeroizing<Box<str>>>,
}

impl Secret {
    pub(crate) fn new(text: &str) -> Self {
        Self(Arc::new(Forms { plain: Zeroizing::new(text.into()), encoded: None }))
    }

    /// Creates a copy of the secret that is also found by its encoded form.
    pub(crate) fn with_encoded(&self, encoded: &str) -> Self {
        let encoded = Some(Zeroizing::new(encoded.into()));
        Self(Arc::new(Forms { plain: self.0.plain.clone(), encoded }))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0.plain
    }

    /// Returns whether `text` contains the secret, in plain text, in its encoded form or percent-encoded.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        let contains = |form: &str| {
            // Percent-encoding never makes the secret shorter.
            text.len() >= form.len()
                && (text.contains(form) || percent_decode_str(text).decode_utf8_lossy().contains(form))
        };
        contains(self.expose()) || self.0.encoded.as_ref().is_some_and(|encoded| contains(encoded))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redacted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_found_in_plain_and_percent_encoded_text() {
        let secret = Secret::new("s3/cr%t");
        for (text, found) in [
            ("s3/cr%t", true),
            ("<s3/cr%t>", true),
            ("s3%2Fcr%25t", true),
            ("%73%33%2f%63%72%25%74", true),
            ("s3/cr%25t", true),
            ("s3/cr%", false),
            ("s3%252Fcr%2525t", false),
            ("", false),
        ] {
            assert_eq!(secret.is_in(text), found, "{text}");
        }
        assert_eq!(format!("{secret:?}"), "redacted");
    }

    #[test]
    fn secret_is_found_in_its_encoded_form() {
        let secret = Secret::new("s3cret").with_encoded("YW5uOnMzY3JldD8+");
        for (text, found) in [
            ("s3cret", true),
            ("id-YW5uOnMzY3JldD8+-1", true),
            ("YW5uOnMzY3JldD8%2B", true),
            ("YW5uOnMzY3JldD8", false),
        ] {
            assert_eq!(secret.is_in(text), found, "{text}");
        }
        assert_eq!((secret.expose(), format!("{secret:?}").as_str()), ("s3cret", "redacted"));
    }

    /// Checks only the type of the secret, because the crate `zeroize` tests that the memory is overwritten.
    #[test]
    fn secret_overwrites_its_memory_when_dropped() {
        fn overwritten(_: &impl zeroize::ZeroizeOnDrop) {}
        let secret = Secret::new("s3cret").with_encoded("encoded");
        overwritten(&secret.0.plain);
        overwritten(secret.0.encoded.as_ref().unwrap());
    }
}
