//! How a key may be written in a text that was made of a request.

use std::ops::Range;

use zeroize::Zeroizing;

/// A key, or what base64 makes of it, to be found however its characters are written: as they are, behind backslashes,
/// as `\u0026`, percent-encoded, or as HTML's entities.
pub(crate) struct Pattern {
    bytes: Zeroizing<Vec<u8>>,
    base64: Option<Shared>,
}

/// Whether characters of base64 tell some bits of the key and some of what stands beside it.
#[derive(Clone, Copy)]
struct Shared {
    first: bool,
    last: bool,
}

impl Pattern {
    /// Fewer characters of base64 than these are found by chance.
    const SHORTEST_BASE64: usize = 4;

    /// The key as it is, and within base64.
    pub(crate) fn of(key: &str) -> impl Iterator<Item = Self> {
        let plain = Self { bytes: Zeroizing::new(key.as_bytes().to_vec()), base64: None };
        // What stands before it, such as a user's name, shifts what comes out: three ways.
        let shifted = (0..3).map(|before| {
            let (first, last) = (before > 0, (before + key.len()) % 3 > 0);
            Self { bytes: base64_of(key.as_bytes(), before), base64: Some(Shared { first, last }) }
        });
        [plain].into_iter().chain(shifted.filter(|shifted| shifted.bytes.len() >= Self::SHORTEST_BASE64))
    }

    /// Where it stands first, from `from` on; where the text is `cut` off, also so much of it as is there.
    pub(crate) fn find(&self, text: &str, from: usize, cut: bool) -> Option<Range<usize>> {
        (from..text.len()).filter(|at| text.is_char_boundary(*at)).find_map(|start| {
            let end = self.end(text.as_bytes(), start, cut)?;
            let found = self.base64.map_or(start..end, |shared| shared.around(text.as_bytes(), start..end));
            Some(whole_characters(text, found))
        })
    }

    /// Where it ends if it starts here. What stands for one character may be the beginning of what stands for another,
    /// so all readings are followed.
    fn end(&self, text: &[u8], start: usize, cut: bool) -> Option<usize> {
        if !cut && self.writings(text.get(start..)?, *self.bytes.first()?).iter().all(Option::is_none) {
            return None;
        }
        let mut ends = vec![start];
        for byte in &**self.bytes {
            let mut next = Vec::new();
            for end in ends {
                let rest = text.get(end..)?;
                if cut && (rest.is_empty() || is_begun(rest)) {
                    return Some(text.len());
                }
                next.extend(self.writings(rest, *byte).into_iter().flatten().map(|length| end + length));
            }
            next.sort_unstable();
            next.dedup();
            ends = next;
            if ends.is_empty() {
                return None;
            }
        }
        ends.pop()
    }

    /// The lengths of what stands for `byte` at the beginning of the text.
    fn writings(&self, text: &[u8], byte: u8) -> [Option<usize>; 4] {
        let is = |one: u8| {
            one == byte || self.base64.is_some() && matches!((one, byte), (b'-', b'+') | (b'_', b'/'))
        };
        let doubled =
            |one: u8, written: &[u8]| (byte == one && text.starts_with(written)).then_some(written.len());
        [
            text.first().is_some_and(|one| is(*one)).then_some(1),
            // In JSON, and in JSON within JSON; in a URL, and in a URL within a URL.
            doubled(b'\\', br"\\").or(doubled(b'%', b"%25")),
            doubled(b'\\', br"\\\\").or(doubled(b'%', b"%2525")),
            encoded(text).filter(|(one, _)| is(*one)).map(|(_, length)| length),
        ]
    }
}

impl Shared {
    /// With the character of base64 before it and the one after it, where they tell of the key.
    fn around(self, text: &[u8], found: Range<usize>) -> Range<usize> {
        let is_base64 = |one: u8| one.is_ascii_alphanumeric() || b"+/-_".contains(&one);
        // `+` and `/` as URLs and JSON write them.
        let before = match text.get(..found.start).unwrap_or_default() {
            _ if !self.first => 0,
            [.., b'%', b'2', b'5', b'2', b'b' | b'B' | b'f' | b'F'] => 5,
            [.., b'%', b'2', b'b' | b'B' | b'f' | b'F'] => 3,
            [.., b'\\', b'/'] => 2,
            [.., one] if is_base64(*one) => 1,
            _ => 0,
        };
        let after = match text.get(found.end..).unwrap_or_default() {
            _ if !self.last => 0,
            [b'%', b'2', b'5', b'2', b'b' | b'B' | b'f' | b'F', ..] => 5,
            [b'%', b'2', b'b' | b'B' | b'f' | b'F', ..] => 3,
            [b'\\', b'/', ..] => 2,
            [one, ..] if is_base64(*one) => 1,
            _ => 0,
        };
        found.start - before..found.end + after
    }
}

/// Rather a character too much than half of one, which no text can be cut at.
fn whole_characters(text: &str, Range { mut start, mut end }: Range<usize>) -> Range<usize> {
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    while end < text.len() && !text.is_char_boundary(end) {
        end += 1;
    }
    start..end.min(text.len())
}

/// The longest of HTML's entities that is read.
const LONGEST: usize = "&#x0026;".len();

/// Most backslashes that are read as one writing, of JSON within JSON five times over: each start in a run of them would
/// count all of it otherwise.
const MOST_SLASHES: usize = 31;

/// Whether it is cut off within the writing of one character.
fn is_begun(text: &[u8]) -> bool {
    match text {
        [b'%', rest @ ..] => without_25(rest).len() < 2,
        [b'\\', ..] => match behind_slashes(text).1 {
            [b'u', digits @ ..] => digits.len() < 4,
            rest => rest.is_empty(),
        },
        [b'&', ..] => text.len() < LONGEST && !text.contains(&b';'),
        _ => false,
    }
}

/// The character that is not written as it is, and how long that is.
fn encoded(text: &[u8]) -> Option<(u8, usize)> {
    match text.first()? {
        b'\\' => escaped(text),
        b'%' => {
            let digits = without_25(&text[1..]);
            Some((number(digits.get(..2), 16)?, text.len() - digits.len() + 2))
        }
        b'&' => entity(text),
        _ => None,
    }
}

/// What follows `%` when it was encoded once more, or again and again.
fn without_25(mut digits: &[u8]) -> &[u8] {
    while let [b'2', b'5', rest @ ..] = digits {
        digits = rest;
    }
    digits
}

/// Behind backslashes, of which JSON within JSON has more than one.
fn escaped(text: &[u8]) -> Option<(u8, usize)> {
    match behind_slashes(text) {
        (slashes, [b'u', digits @ ..]) => Some((number(digits.get(..4), 16)?, slashes + 5)),
        (slashes, [one @ (b'"' | b'/' | b'\''), ..]) => Some((*one, slashes + 1)),
        _ => None,
    }
}

fn behind_slashes(text: &[u8]) -> (usize, &[u8]) {
    let slashes = text.iter().take(MOST_SLASHES).take_while(|one| **one == b'\\').count();
    (slashes, text.get(slashes..).unwrap_or_default())
}

fn entity(text: &[u8]) -> Option<(u8, usize)> {
    let end = text.iter().take(LONGEST).position(|one| *one == b';')?;
    let one = match text.get(1..end)? {
        b"amp" => b'&',
        b"lt" => b'<',
        b"gt" => b'>',
        b"quot" => b'"',
        b"apos" => b'\'',
        [b'#', b'x' | b'X', hex @ ..] => number(Some(hex), 16)?,
        [b'#', decimal @ ..] => number(Some(decimal), 10)?,
        _ => return None,
    };
    Some((one, end + 1))
}

fn number(digits: Option<&[u8]>, radix: u32) -> Option<u8> {
    let digits = std::str::from_utf8(digits?).ok().filter(|digits| !digits.starts_with('+'))?;
    u8::from_str_radix(digits, radix).ok()
}

/// The characters that depend on nothing but the key, when so many bytes stand before it.
fn base64_of(key: &[u8], before: usize) -> Zeroizing<Vec<u8>> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bit = |at: usize| key.get((at / 8).wrapping_sub(before)).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    let sextets = (8 * before).div_ceil(6)..8 * (before + key.len()) / 6;
    let mut encoded = Zeroizing::new(Vec::with_capacity(sextets.len()));
    encoded.extend(sextets.map(|sextet| {
        let index = (6 * sextet..6 * sextet + 6).fold(0, |index, at| index << 1 | bit(at));
        ALPHABET[usize::from(index)]
    }));
    encoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(key: &str, text: &str) -> bool {
        Pattern::of(key).any(|pattern| pattern.find(text, 0, false).is_some())
    }

    #[test]
    fn each_character_is_found_in_each_of_its_writings() {
        let key = r#"a/b"c\d&e+<f%'g"#;
        for written in [
            r#"a/b"c\d&e+<f%'g"#,
            r#"a\/b\"c\\d\u0026e\u002B\u003cf%\'g"#,
            r#"a\\\/b\\\"c\\\\d\\u0026e+<f%'g"#,
            r#"a%2fb%22c%5Cd%26e%2b%3Cf%25%27g"#,
            r#"a&#x2F;b&quot;c&#92;d&amp;e&#43;&lt;f%&apos;g"#,
            r#"%61/b"c\d&e+<f%25'\u0067"#,
            r#"a%252fb%22c%255Cd%26e%2b%3Cf%2525%2527g"#,
        ] {
            let range = Pattern::of(key).find_map(|pattern| pattern.find(&format!("<{written}>"), 0, false));
            // Where the doubling is undone in part, what is left tells nothing of the key.
            assert_eq!(range.unwrap_or_default(), 1..1 + written.len(), "{written}");
        }
        for other in [r#"a/b"c\d&e+<f%'"#, r#"b/b"c\d&e+<f%'g"#, "a", "", r"\", "%", "&"] {
            assert!(!found(key, other), "{other}");
        }
        assert!(!found("k", "&#+107;") && !found("k", "%+6b") && !found("k", "&#363;"));
    }

    #[test]
    fn base64_is_found_whatever_stands_before_and_after() {
        // `s3cret` after `u:`, `an:`, `ann:` and alone, by another encoder.
        for (text, shown) in [
            ("<dTpzM2NyZXQ=>", "<dT=>"),
            ("<YW46czNjcmV0>", "<YW46>"),
            ("<YW5uOnMzY3JldA==>", "<YW5uO==>"),
            ("<czNjcmV0>", "<>"),
            ("<czNjcmV0fQ>", "<fQ>"),
        ] {
            let found: Vec<_> =
                Pattern::of("s3cret").filter_map(|pattern| pattern.find(text, 0, false)).collect();
            let [Range { start, end }] = found[..] else { panic!("{text}: {found:?}") };
            assert_eq!(text[..start].to_owned() + &text[end..], shown);
        }
        // In the alphabet of URLs, and as URLs and JSON write the other one.
        for text in ["Pz8-Pj8_", "Pz8+Pj8/", "Pz8%2BPj8%2F", r"Pz8+Pj8\/", "Pz8%2bPj8%2f"] {
            assert!(found("??>>??", text), "{text}");
        }
        // Too short a key to be told from chance.
        assert!(!found("ab", "YWI="));
    }

    /// What a writing of a key may begin or end in, and what may stand beside it.
    const BESIDE: [&str; 22] = [
        "%", "%2", "%25", "%252", "%25252", "%2B", "%252f", "%2é", "%252é", "%é", "\\", r"\\", r"\/", r"\é",
        r"\u00", r"\u00é", "&", "&#x", "&é;", "é", "A", "=",
    ];

    fn beside() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(&BESIDE[..]), 1..4).prop_map(|parts| parts.concat())
    }

    /// A key in one of its writings, base64 among them, with something around it.
    fn quoted(key: &str, user: &str, writing: usize) -> String {
        let json = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"");
        let percent = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        // No more of it than depends on nothing that follows.
        let encoded = String::from_utf8_lossy(&base64_of(format!("{user}{key}").as_bytes(), 0)).into_owned();
        match writing {
            0 => key.to_owned(),
            1 => json(key),
            2 => json(&json(key)),
            3 => percent(key),
            4 => percent(key).replace('%', "%25"),
            5 => key.bytes().map(|byte| format!("\\u{byte:04x}")).collect(),
            6 => key.bytes().map(|byte| format!("&#{byte};")).collect(),
            7 => encoded,
            8 => encoded.replace('/', r"\/"),
            9 => encoded.replace('+', "%2B").replace('/', "%2f"),
            _ => encoded.replace('+', "%252B").replace('/', "%252F"),
        }
    }

    #[test]
    fn what_stands_beside_base64_and_tells_of_the_key_is_found_with_it() {
        let both = Shared { first: true, last: true };
        for (before, after) in [
            ("+", "/"),
            ("-", "_"),
            ("7", "a"),
            ("%2B", "%2f"),
            ("%2b", "%2F"),
            ("%252b", "%252F"),
            ("%252F", "%252B"),
            (r"\/", r"\/"),
            ("", "="),
            ("", "%3D"),
            ("", r"\n"),
        ] {
            let text = format!("<{before}XX{after}>");
            let found = 1 + before.len()..3 + before.len();
            // What is no base64 stays outside.
            let kept = if before.is_empty() { "" } else { after };
            let whole = 1..found.end + kept.len();
            assert_eq!(both.around(text.as_bytes(), found.clone()), whole, "{text}");
            let neither = Shared { first: false, last: false };
            assert_eq!(neither.around(text.as_bytes(), found.clone()), found, "{text}");
        }
        assert_eq!(both.around(b"XX", 0..2), 0..2);
    }

    #[test]
    fn a_range_grows_to_whole_characters() {
        for (range, whole) in
            [(0..1, 0..1), (2..3, 1..3), (1..2, 1..3), (2..2, 1..3), (5..6, 4..7), (4..9, 4..7)]
        {
            assert_eq!(whole_characters("aéb€", range.clone()), whole, "{range:?}");
        }
    }

    #[test]
    fn a_text_is_cut_off_within_a_character_or_behind_one() {
        let within = [
            "%", "%2", "%25", "%252", "%25252", r"\", r"\\", r"\u", r"\u00", r"\\u002", "&", "&am", "&#x0026",
        ];
        for text in within {
            assert!(is_begun(text.as_bytes()), "{text}");
        }
        for text in [
            "", "a", "%2f", "%252f", "%é", r"\n", r"\u0026", r"\u00261", "&amp;", "&#x;", "&#x00026",
            "&nothing",
        ] {
            assert!(!is_begun(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn an_entity_is_one_character_with_a_name_or_a_number() {
        for (text, one) in
            [("&amp;", b'&'), ("&lt;", b'<'), ("&gt;", b'>'), ("&quot;", b'"'), ("&apos;", b'\'')]
        {
            assert_eq!(entity(text.as_bytes()), Some((one, text.len())));
        }
        for (text, length) in [("&#62;", 5), ("&#x3e;x", 6), ("&#X3E;", 6), ("&#x003E;", 8)] {
            assert_eq!(entity(text.as_bytes()), Some((b'>', length)));
        }
        for text in ["&gt", "&g;", "&GT;", "&;", "&#;", "&#x;", "&#x0003e;", "&#+62;", "&#x100;"] {
            assert_eq!(entity(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn half_a_character_is_never_found() {
        for text in ["dTpzM2NyZX%252é tail", "dTpzM2NyZX%2é", "é%2czNjcmV0"] {
            for range in Pattern::of("s3cret").filter_map(|pattern| pattern.find(text, 0, true)) {
                assert!(text.get(range.clone()).is_some(), "{range:?} of {text}");
            }
        }
    }

    /// Minutes if each of them led to a look at all that follow.
    #[test]
    fn a_long_run_of_the_same_is_read_once() {
        for (one, key) in [("\\", r#"s3cret\"#), ("\\", r"\\s3cret"), ("%25", "%s3cret"), ("&#", "&s3cret")] {
            let text = one.repeat((1 << 15) / one.len());
            assert!(!found(key, &text));
            assert!(found(key, &(text + key)));
        }
    }

    #[test]
    fn a_key_cut_off_within_backslashes_is_found() {
        for slashes in 1..=MOST_SLASHES {
            for end in ["", "u", "u00", "u002"] {
                let text = format!("a{}{end}", r"\".repeat(slashes));
                let pattern = Pattern::of(r#"a"b"#).next();
                assert_eq!(pattern.and_then(|pattern| pattern.find(&text, 0, true)), Some(0..text.len()));
            }
        }
    }

    proptest! {
        // What goes wrong does so for a few pairs of a writing and what follows it.
        #![proptest_config(ProptestConfig::with_cases(2_048))]
        #[test]
        fn what_it_finds_is_whole_characters_whatever_stands_beside_the_key(
            key in "[a-z0-9%/\\\\&\"+?>]{1,10}",
            user in "[a-z]{0,3}:?",
            writing in 0_usize..11,
            before in beside(),
            after in beside(),
            cut in prop::option::of(0_usize..60),
        ) {
            let mut text = format!("{before}{}{after} tail", quoted(&key, &user, writing));
            if let Some((at, _)) = cut.and_then(|cut| text.char_indices().nth(cut)) {
                text.truncate(at);
            }
            for pattern in Pattern::of(&key) {
                let mut from = 0;
                while let Some(range) = pattern.find(&text, from, cut.is_some()) {
                    let whole = text.get(range.clone()).is_some_and(|found| !found.is_empty());
                    prop_assert!(whole && range.end > from, "{range:?} of {text}");
                    from = range.end;
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(key in "[ab%\\\\&;/]{1,6}", text in "[ab%\\\\&#;ué/u0061]{0,40}", cut: bool) {
            for pattern in Pattern::of(&key) {
                if let Some(range) = pattern.find(&text, 0, cut) {
                    prop_assert!(text.get(range.clone()).is_some_and(|found| !found.is_empty()), "{range:?}");
                }
            }
        }

        #[test]
        fn what_is_cut_off_is_found_to_its_end(key in "[a-z0-9/\"\\\\%&]{1,20}", cut in 1_usize..40) {
            let text = format!("- {}", key.replace('\\', r"\\").replace('"', "\\\"").replace('&', r"\u0026"));
            let cut = cut.min(text.len() - 2) + 2;
            let pattern = Pattern::of(&key).next();
            let range = pattern.and_then(|pattern| pattern.find(&text[..cut], 0, true));
            prop_assert_eq!(range, Some(2..cut));
        }
    }
}
