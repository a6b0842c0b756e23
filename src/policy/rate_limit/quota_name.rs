use std::fmt;

/// The name of a quota of a server: the resource, bucket or policy that its headers name, or else the header with the
/// remaining permits. A name has at most 47 bytes.
///
/// Only [`as_str`](Self::as_str) shows the text of a server, which may repeat the key. `Debug` redacts it, and there is
/// no `Display`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct QuotaName {
    /// Whether the name is that of a header, and not a text of the server.
    is_header: bool,
    length: u8,
    text: [u8; Self::LONGEST],
}

impl QuotaName {
    const LONGEST: usize = 47;
    /// The name that stands for one that may contain a key.
    const REDACTED: &str = "redacted";

    /// Uses the text of a server. Uses `header` instead if the text is empty, longer than a name, not visible ASCII, or
    /// contains an escaped character. A key that the server repeats would otherwise not be recognised.
    pub(super) fn of(text: &str, header: &str) -> Self {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
        if (1..=Self::LONGEST).contains(&text.len()) && text.bytes().all(is_plain) {
            Self { is_header: false, ..Self::of_header(text) }
        } else {
            Self::of_header(header)
        }
    }

    /// Uses the beginning of the name of a header.
    pub(crate) fn of_header(text: &str) -> Self {
        let mut name = Self { is_header: true, length: 0, text: [0; Self::LONGEST] };
        for (place, byte) in name.text.iter_mut().zip(text.bytes().filter(u8::is_ascii)) {
            *place = byte;
            name.length += 1;
        }
        name
    }

    /// Returns this name, or a word that stands for it if it is a text of the server that `is_secret`.
    pub(crate) fn unless(self, is_secret: impl FnOnce(&str) -> bool) -> Self {
        let is_shown = self.is_header || !is_secret(self.as_str());
        if is_shown { self } else { Self::of_header(Self::REDACTED) }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        self.text
            .get(..self.length.into())
            .and_then(|text| std::str::from_utf8(text).ok())
            .unwrap_or_default()
    }
}

impl fmt::Debug for QuotaName {
    // Does not write a text of the server, which may repeat the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_header { self.as_str().fmt(f) } else { f.write_str("QuotaName(..)") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_name_is_the_whole_text_of_the_server_or_the_header() {
        let long = "x".repeat(47);
        for (text, name) in [
            ("core", "core"),
            ("", "header"),
            ("a b", "header"),
            ("é", "header"),
            (r"a\b", "header"),
            (&long, &long),
        ] {
            assert_eq!(QuotaName::of(text, "header").as_str(), name);
        }
        assert_eq!(QuotaName::of(&"x".repeat(48), "header").as_str(), "header");
        assert_eq!(QuotaName::of_header(&"x".repeat(99)).as_str(), long);
    }

    #[test]
    fn text_of_the_server_is_not_in_debug_output_and_is_redacted_if_it_is_a_secret() {
        let [text, header] = ["core", ""].map(|text| QuotaName::of(text, "header"));
        assert_eq!(format!("{text:?} {header:?}"), "QuotaName(..) \"header\"");
        for (name, is_secret, shown) in
            [(text, false, "core"), (text, true, "redacted"), (header, true, "header")]
        {
            assert_eq!(name.unless(|_| is_secret).as_str(), shown);
        }
    }
}
