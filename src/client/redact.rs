//! What is taken out of the text of an answer before it is shown.

use super::Client;
use crate::auth::{ApiKey, KeySource, Pattern};

const HIDDEN: &str = "[redacted]";

impl Client {
    /// This text without the preset's key, where it is a key that is known here: for what a server says of a request,
    /// before it is logged. What a signature or a closure sends is not known, nor is a key before the one in use; what
    /// a `JsonError` quotes is without the keys that its own call has sent, too.
    ///
    /// Hidden is the key as it is, with any of its characters as JSON, a URL or HTML writes it, and within base64, as in
    /// `Basic`, where the key has four characters or more; not what else a server makes of it.
    ///
    /// ```
    /// use tower_outbound::{ApiKey, preset};
    ///
    /// let rates = preset::currency_rates("https://rates.example.com")?.with_api_key(ApiKey::new("s3cret")?).client()?;
    /// assert_eq!(rates.redacted("no such key: s3cret"), "no such key: [redacted]");
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    pub fn redacted(&self, text: &str) -> String {
        self.hide_keys(text, &[], false)
    }

    /// The same of a text that was perhaps cut off within a key, in an answer to a call that has `sent` these.
    #[cfg(feature = "json")]
    pub(super) fn redacted_answer(&self, text: &str, sent: &[ApiKey], cut: bool) -> String {
        self.hide_keys(text, sent, cut)
    }

    fn hide_keys(&self, text: &str, sent: &[ApiKey], cut: bool) -> String {
        let current = self.keys.as_ref().and_then(KeySource::known);
        let current = current.iter().map(|current| current.key());
        let mut keys: Vec<_> = sent.iter().chain(current).map(ApiKey::expose).collect();
        // The longest first: a shorter one may be a part of it.
        keys.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        keys.dedup();
        let patterns = keys.into_iter().flat_map(Pattern::of);
        patterns.fold(text.to_owned(), |text, pattern| hide(text, &pattern, cut))
    }
}

fn hide(text: String, pattern: &Pattern, cut: bool) -> String {
    let (mut shown, mut from) = (String::new(), 0);
    while let Some(found) = pattern.find(&text, from, cut) {
        // Two may share a character of base64.
        shown.push_str(text.get(from..found.start.max(from)).unwrap_or_default());
        // A single character that the text ends in is found there by chance, too.
        if !cut || found.end < text.len() {
            shown.push_str(HIDDEN);
        }
        from = found.end;
    }
    if from == 0 {
        return text;
    }
    shown.push_str(text.get(from..).unwrap_or_default());
    shown
}

/// Hides the values of the members of JSON whose names speak of a secret, also where the text is cut off.
#[cfg(feature = "json")]
pub(super) fn hide_members(text: &str) -> String {
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find('"') {
        let end = start + end_of_value(&rest[start..]);
        let (string, after) = rest.split_at(end);
        shown.push_str(string);
        rest = after;
        let value = after.trim_start().strip_prefix(':').map(str::trim_start);
        if let Some(value) = value.filter(|_| speaks_of_a_secret(&string[start..])) {
            shown.push_str(&after[..after.len() - value.len()]);
            shown.extend(["\"", HIDDEN, "\""]);
            rest = &value[end_of_value(value)..];
        }
    }
    shown.push_str(rest);
    shown
}

/// The length of the value at the beginning of the text, or of what there is of it.
#[cfg(feature = "json")]
fn end_of_value(text: &str) -> usize {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (at, one) in text.bytes().enumerate() {
        if in_string {
            in_string = one != b'"' || escaped;
            escaped = one == b'\\' && !escaped;
            if in_string {
                continue;
            }
        } else {
            match one {
                b'"' => in_string = true,
                b'[' | b'{' => depth += 1,
                // Of the object or list that it is in.
                b']' | b'}' | b',' if depth == 0 => return at,
                b']' | b'}' => depth -= 1,
                _ => continue,
            }
            if in_string || !matches!(one, b']' | b'}') {
                continue;
            }
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

#[cfg(feature = "json")]
fn speaks_of_a_secret(name: &str) -> bool {
    const WORDS: [&str; 9] = [
        "key",
        "token",
        "secret",
        "password",
        "passwd",
        "authorization",
        "credential",
        "signature",
        "cookie",
    ];
    let name = name.to_ascii_lowercase();
    WORDS.iter().any(|word| name.contains(word))
}

#[cfg(all(test, feature = "json"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_strings_of_secret_members_are_hidden_and_nothing_else() {
        for (text, shown) in [
            (r#"{"api_key": "s3cret", "code": "EUR"}"#, r#"{"api_key": "[redacted]", "code": "EUR"}"#),
            (r#"{"Access-Token":"a\"b","x":1}"#, r#"{"Access-Token":"[redacted]","x":1}"#),
            (r#"{"password" : "s3cr"#, r#"{"password" : "[redacted]""#),
            (r#"{"secret":"tail\"#, r#"{"secret":"[redacted]""#),
            (r#"{"tokens":["a","b"],"code":"c"}"#, r#"{"tokens":"[redacted]","code":"c"}"#),
            (r#"{"key":{"a":["}"]},"code":"c"}"#, r#"{"key":"[redacted]","code":"c"}"#),
            (r#"[{"key":17},{"code":"c"}]"#, r#"[{"key":"[redacted]"},{"code":"c"}]"#),
            (r#"{"key":"#, r#"{"key":"[redacted]""#),
            (r#"{"error":"the key is wrong"}"#, r#"{"error":"the key is wrong"}"#),
            (r#"["key","token"]"#, r#"["key","token"]"#),
            (r#"{"code":7,"b":"c"}"#, r#"{"code":7,"b":"c"}"#),
            // Rather too much.
            (r#"{"monkey":7,"b":"c"}"#, r#"{"monkey":"[redacted]","b":"c"}"#),
            ("<html>\"key\"</html>", "<html>\"key\"</html>"),
            ("", ""),
        ] {
            assert_eq!(hide_members(text), shown, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([a-z\"\\\\:,\\[\\]{}é ]|key|token){0,60}") {
            hide_members(&text);
        }
    }
}
