//! Finds a key in a text, even if the key is encoded.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The characters that the form encoding of OAuth 2 client credentials keeps.
pub(crate) const FORM: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The number of characters at the start and at the end of the key that the search looks for. Shorter pieces could
/// match by chance.
pub(crate) const PIECE: usize = 12;

/// A piece of the key in one encoding.
pub(crate) struct Needle {
    encoding: String,
    text: String,
}

/// A search for a key. The search also finds a different key that starts or ends with the same characters.
pub(crate) struct Search(Vec<Needle>);

impl Search {
    pub(crate) fn new(key: &str) -> Self {
        let ends = [&key[..PIECE], &key[key.len() - PIECE..]];
        Self(ends.into_iter().flat_map(needles).collect())
    }

    /// Returns the encoding in which the key occurs in `text`, and the text before the key. Returns `None` if `text`
    /// does not contain the key.
    pub(crate) fn find(&self, text: &str) -> Option<String> {
        variants(text).find_map(|text| {
            self.0.iter().find_map(|needle| {
                let at = text.find(&needle.text)?;
                let before: String = text[..at].chars().rev().take(120).collect();
                let before: String = before.chars().rev().collect();
                Some(format!("{} after: …{before}", needle.encoding))
            })
        })
    }
}

fn needles(piece: &str) -> Vec<Needle> {
    let bytes = piece.as_bytes();
    let list = |number: fn(&u8) -> String| bytes.iter().map(number).collect::<Vec<_>>().join(",");
    let mut needles = vec![
        ("plain", piece.to_owned()),
        ("hex", bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        ("upper hex", bytes.iter().map(|byte| format!("{byte:02X}")).collect()),
        ("list of bytes", list(|byte| format!("{byte}"))),
        ("list of hex bytes", list(|byte| format!("{byte:x}"))),
        ("list of 0x bytes", list(|byte| format!("0x{byte:x}"))),
    ];
    // Bytes before the piece, such as `user:`, shift its base64 encoding. Three different shifts are possible. OAuth 2
    // percent-encodes a secret before its base64 encoding.
    for bytes in [piece.to_owned(), utf8_percent_encode(piece, FORM).to_string()] {
        for before in 0..3 {
            let encoded = base64(&[&vec![0; before], bytes.as_bytes()].concat());
            let whole = &encoded[(8 * before).div_ceil(6)..8 * (before + bytes.len()) / 6];
            needles.push(("base64", whole.to_owned()));
            needles.push(("URL-safe base64", whole.replace('+', "-").replace('/', "_")));
        }
    }
    needles.into_iter().map(|(encoding, text)| Needle { encoding: encoding.to_owned(), text }).collect()
}

/// Returns the text and its decoded variants. Decoding removes the escapes of up to three nested `Debug` strings, up to
/// two percent-encodings, and the white space that `{:#?}` puts into lists.
fn variants(text: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let mut variants = vec![Cow::Borrowed(text)];
    for _ in 0..3 {
        variants
            .extend(variants.last().filter(|text| text.contains('\\')).map(|text| unescaped(text).into()));
    }
    for at in 0..variants.len() {
        let mut decoded = variants[at].clone();
        for _ in 0..2 {
            if !decoded.contains('%') {
                break;
            }
            decoded = percent_decode_str(&decoded).decode_utf8_lossy().into_owned().into();
            variants.push(decoded.clone());
        }
    }
    let without_white_space: String = text.split_whitespace().collect();
    variants.into_iter().chain([without_white_space.into()])
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        out.push(if char == '\\' { chars.next().unwrap_or(char) } else { char });
    }
    out
}

/// Encodes in base64 without padding, because the encoded text may continue after the key.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| usize::from(byte >> (7 - at % 8) & 1));
    let sextets = (0..(8 * bytes.len()).div_ceil(6)).map(|place| 6 * place);
    let index = |first: usize| (first..first + 6).fold(0, |index, at| index << 1 | bit(at));
    sextets.map(|first| char::from(ALPHABET[index(first)])).collect()
}

/// A search that never finds a key would hide every leak. This test shows that the search finds keys.
#[test]
fn key_search_finds_a_key_in_every_encoding() {
    use percent_encoding::CONTROLS;

    const SOME: &AsciiSet = &CONTROLS.add(b'%').add(b'"').add(b'+').add(b'/');
    // The test vectors of RFC 4648, section 10.
    assert_eq!(
        ["f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes())),
        ["Zg", "Zm8", "Zm9v", "Zm9vYg"]
    );

    let key = "planted/+=%~&\"\\>?key-\\\"&~%=+/end";
    let search = Search::new(key);
    let debug = |text: &str| format!("{text:?}");
    let hex: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
    let percent = utf8_percent_encode(key, NON_ALPHANUMERIC).to_string();
    let some = utf8_percent_encode(key, SOME).to_string();
    let url_safe = |text: String| text.replace('+', "-").replace('/', "_");
    let planted = [
        key.to_owned(),
        key[..PIECE].to_owned(),
        key[key.len() - PIECE..].to_owned(),
        format!("Bearer {key}"),
        debug(key),
        debug(&debug(key)),
        debug(&debug(&debug(key))),
        format!("{:?}", bytes::Bytes::from(key)),
        format!("{:?}", key.as_bytes()),
        format!("{:#?}", key.as_bytes()),
        format!("{:x?}", key.as_bytes()),
        format!("{:#x?}", key.as_bytes()),
        format!("{:?}", http::HeaderValue::from_str(key).unwrap()),
        hex.to_uppercase(),
        hex,
        base64(key.as_bytes()),
        base64(format!("u:{key}").as_bytes()),
        base64(format!("me:{key}").as_bytes()),
        base64(format!("ann:{key}").as_bytes()) + "==",
        url_safe(base64(format!("u:{key}").as_bytes())),
        base64(format!("app:{}", utf8_percent_encode(key, FORM)).as_bytes()),
        utf8_percent_encode(&base64(key.as_bytes()), NON_ALPHANUMERIC).to_string(),
        debug(&percent),
        percent.replace("%2B", "%2b").replace("%2F", "%2f"),
        utf8_percent_encode(&percent, NON_ALPHANUMERIC).to_string(),
        percent,
        some,
    ];
    for text in planted {
        assert!(
            search.find(&format!("before {text} after")).is_some(),
            "the search did not find the key in: {text}"
        );
    }
    for harmless in ["", "before after", &key[..PIECE - 1], "Sensitive", "ApiKey(redacted)"] {
        assert_eq!(search.find(harmless), None);
    }
}
