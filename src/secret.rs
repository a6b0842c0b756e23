use std::{fmt, sync::Arc};

use percent_encoding::percent_decode_str;
use zeroize::Zeroizing;

/// A secret text. Its memory is overwritten when its last clone is dropped.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Arc<Zeroizing<Box<str>>>);

impl Secret {
    pub(crate) fn new(text: &str) -> Self {
        Self(Arc::new(Zeroizing::new(text.into())))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Returns whether `text` contains the secret, in plain text or percent-encoded.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        let secret = self.expose();
        // Percent-encoding never makes the secret shorter.
        text.len() >= secret.len()
            && (text.contains(secret) || percent_decode_str(text).decode_utf8_lossy().contains(secret))
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

    /// Checks only the type of the secret, because the crate `zeroize` tests that the memory is overwritten.
    #[test]
    fn secret_overwrites_its_memory_when_dropped() {
        fn overwritten(_: &impl zeroize::ZeroizeOnDrop) {}
        overwritten(&*Secret::new("s3cret").0);
    }
}
