use std::fmt;

/// The name of a quota of a server: the resource, bucket or policy that its headers name, or else the header with the
/// remaining permits. A name has at most 47 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct QuotaName {
    length: u8,
    text: [u8; Self::LONGEST],
}

impl QuotaName {
    const LONGEST: usize = 47;

    /// Uses the text of a server. Uses `header` instead if the text is empty, longer than a name or not visible ASCII. A
    /// part of the text could be the beginning of a key that the server repeats, and would not be recognised.
    pub(super) fn of(text: &str, header: &str) -> Self {
        let is_name =
            (1..=Self::LONGEST).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        Self::new(if is_name { text } else { header })
    }

    /// Uses the beginning of a text that is not the server's.
    pub(crate) fn new(text: &str) -> Self {
        let mut name = Self { length: 0, text: [0; Self::LONGEST] };
        for (place, byte) in name.text.iter_mut().zip(text.bytes().filter(u8::is_ascii)) {
            *place = byte;
            name.length += 1;
        }
        name
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        self.text.get(..self.length.into()).and_then(|text| str::from_utf8(text).ok()).unwrap_or_default()
    }
}

impl fmt::Debug for QuotaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for QuotaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_name_is_the_whole_text_of_the_server_or_the_header() {
        let long = "x".repeat(47);
        for (text, name) in
            [("core", "core"), ("", "header"), ("a b", "header"), ("é", "header"), (&long, &long)]
        {
            assert_eq!(QuotaName::of(text, "header").as_str(), name);
        }
        assert_eq!(QuotaName::of(&"x".repeat(48), "header").as_str(), "header");
        assert_eq!(QuotaName::new(&"x".repeat(99)).as_str(), long);
        assert_eq!(format!("{0} {0:?}", QuotaName::new("core")), "core \"core\"");
    }
}
