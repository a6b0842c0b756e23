//! Parses the values of headers: numbers, and the part of structured fields (RFC 9651) that rate-limit headers use. That
//! part is Lists of Items and Dictionaries of Items, with parameters. Inner Lists are treated as malformed, because no
//! rate-limit header contains one.
//!
//! A parsed value of a structured field is a slice of the field's text. The parser checks only that the value has one
//! of the eight types. The caller converts the value to the type that it needs. The parser does not allocate, and reads
//! each character only a few times.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

/// The longest delay that a server can request: 30 years. A longer requested delay is capped at this value. No caller
/// waits that long.
///
/// 30 years can be added to the time of any clock without overflow. 100 years overflow an `Instant` on FreeBSD,
/// according to the source of tokio's `Instant`.
pub const MAX_REQUESTED_DELAY: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Returns the values of a header that are valid text, without surrounding white space (RFC 9110 §5.5).
pub(super) fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| Some(value.to_str().ok()?.trim_matches([' ', '\t'])))
}

/// Parses `1*DIGIT`. Saturates at `u64::MAX`.
pub(super) fn whole_number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // The text consists of digits only, so the only possible error is an overflow.
    Some(text.parse().unwrap_or(u64::MAX))
}

/// Parses `1*DIGIT [ "." 1*DIGIT ]`. Returns the whole part, saturating at `u64::MAX`, and the fraction in billionths,
/// rounded up.
pub(super) fn number(text: &str) -> Option<(u64, u64)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    Some((whole_number(whole)?, billionths(fraction)?))
}

/// Parses the digits after a decimal point. Returns the billionths, rounded up.
pub(super) fn billionths(digits: &str) -> Option<u64> {
    let (first, rest) = digits.split_at_checked(9).unwrap_or((digits, "0"));
    let (first, rest) = (whole_number(first)? * 10_u64.pow(9 - first.len() as u32), rest);
    let is_more = !rest.is_empty() && whole_number(rest)? > 0;
    Some(first + u64::from(is_more))
}

/// Parses the members of a List or a Dictionary (RFC 9651 §4.2). Calls `member` to parse each member, and skips the
/// commas between members. Returns `None` if any line is malformed.
///
/// Parses each line separately. Parsing the joined lines would have the same result, because no member may span two
/// lines.
pub(super) fn members<'a>(
    lines: impl Iterator<Item = &'a HeaderValue>,
    mut member: impl FnMut(&mut Text<'a>) -> Option<()>,
) -> Option<()> {
    for line in lines {
        let mut text = Text(line.to_str().ok()?.trim_matches([' ', '\t']));
        let mut is_more = !text.0.is_empty();
        while is_more {
            // A member cannot be empty, so a trailing comma is malformed.
            member(&mut text)?;
            text.skip(|c| matches!(c, ' ' | '\t'));
            is_more = text.eat(',').is_some();
            text.skip(|c| matches!(c, ' ' | '\t'));
        }
        if !text.0.is_empty() {
            return None;
        }
    }
    Some(())
}

/// The part of a header line that is not parsed yet.
pub(super) struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    fn next(&mut self) -> Option<char> {
        let mut chars = self.0.chars();
        let next = chars.next();
        self.0 = chars.as_str();
        next
    }

    /// Parses one character. Returns `None` if `wanted` rejects it.
    fn one(&mut self, wanted: impl Fn(char) -> bool) -> Option<()> {
        self.next().filter(|c| wanted(*c)).map(drop)
    }

    fn eat(&mut self, wanted: char) -> Option<()> {
        self.0 = self.0.strip_prefix(wanted)?;
        Some(())
    }

    /// Skips all leading characters that `wanted` accepts. Returns the number of skipped bytes.
    fn skip(&mut self, wanted: impl Fn(char) -> bool) -> usize {
        let before = self.0.len();
        self.0 = self.0.trim_start_matches(wanted);
        before - self.0.len()
    }

    /// Returns the part of the text that `parse` consumes.
    fn slice(&mut self, parse: impl FnOnce(&mut Self) -> Option<()>) -> Option<&'a str> {
        let before = self.0;
        parse(self)?;
        before.get(..before.len() - self.0.len())
    }

    /// Parses the next parameter of an Item. Returns `Some(None)` after the last parameter.
    pub(super) fn parameter(&mut self) -> Option<Option<(&'a str, &'a str)>> {
        if self.eat(';').is_none() {
            return Some(None);
        }
        self.skip(|c| c == ' ');
        self.pair().map(Some)
    }

    /// Parses a key and its value. Returns an empty value if the value is omitted.
    pub(super) fn pair(&mut self) -> Option<(&'a str, &'a str)> {
        let key = self.slice(|text| {
            text.one(|c| matches!(c, 'a'..='z' | '*'))?;
            text.skip(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-' | '.' | '*'));
            Some(())
        })?;
        let value = if self.eat('=').is_some() { self.value()? } else { "" };
        Some((key, value))
    }

    /// Parses a Bare Item and returns its text. The first character determines the type.
    pub(super) fn value(&mut self) -> Option<&'a str> {
        self.slice(|text| match text.next()? {
            '"' => text.quoted('\\', |text| text.one(|c| matches!(c, '"' | '\\'))),
            // Of a Display String, only the syntax is checked, because no policy name has this type.
            '%' => text.eat('"').and_then(|()| {
                let hex = |c| matches!(c, '0'..='9' | 'a'..='f');
                text.quoted('%', |text| text.one(hex).and_then(|()| text.one(hex)))
            }),
            ':' => {
                text.skip(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '='));
                text.eat(':')
            }
            '?' => text.one(|c| matches!(c, '0' | '1')),
            '@' => {
                let _ = text.eat('-');
                text.digits(15)
            }
            '-' => text.number(0),
            '0'..='9' => text.number(1),
            first if is_token_start(first) => {
                text.skip(is_token);
                Some(())
            }
            _ => None,
        })
    }

    /// Parses the rest of a quoted text after the opening quote. Calls `escaped` to parse the characters after each
    /// `escape`.
    fn quoted(&mut self, escape: char, escaped: impl Fn(&mut Self) -> Option<()>) -> Option<()> {
        loop {
            match self.next()? {
                '"' => return Some(()),
                next if next == escape => escaped(self)?,
                ' '..='~' => {}
                _ => return None,
            }
        }
    }

    /// Parses an Integer of at most 15 digits, or a Decimal of at most 12 digits and 3 decimal places. The caller has
    /// already parsed the first `before` digits.
    fn number(&mut self, before: usize) -> Option<()> {
        let whole = before + self.skip(|c| c.is_ascii_digit());
        match self.eat('.') {
            Some(()) => (1..=12).contains(&whole).then(|| self.digits(3))?,
            None => (1..=15).contains(&whole).then_some(()),
        }
    }

    /// Parses 1 to `most` digits.
    fn digits(&mut self, most: usize) -> Option<()> {
        (1..=most).contains(&self.skip(|c| c.is_ascii_digit())).then_some(())
    }
}

/// Returns the text between the quotes of a String, or the text of a Token. Escapes are not removed: equal Strings have
/// equal escapes, because only quotes and backslashes can be escaped.
pub(super) fn name(value: &str) -> Option<&str> {
    match value.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"'),
        None => value.starts_with(is_token_start).then_some(value),
    }
}

/// Parses an Integer of at least zero. `-0` is zero.
pub(super) fn natural(value: &str) -> Option<u64> {
    // `parse` rejects an empty text, and accepts a leading plus sign. No valid Item starts with a plus sign.
    value.parse::<i64>().ok()?.try_into().ok()
}

fn is_token_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '*'
}

fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all members with their parameters, or `None` if the lines are malformed.
    fn list(lines: &[&str]) -> Option<Vec<Vec<String>>> {
        let lines: Vec<_> = lines.iter().map(|line| HeaderValue::from_str(line).unwrap()).collect();
        let mut list = Vec::new();
        members(lines.iter(), |text| {
            let mut item = vec![text.value()?.to_owned()];
            while let Some((key, value)) = text.parameter()? {
                item.extend([key.to_owned(), value.to_owned()]);
            }
            list.push(item);
            Some(())
        })?;
        Some(list)
    }

    #[test]
    fn parses_lists_with_parameters() {
        assert_eq!(list(&[]).unwrap().len(), 0);
        assert_eq!(list(&["", " \t"]).unwrap().len(), 0);
        assert_eq!(
            list(&["a;b;c=1, \"d,;\\\"\" \t,\te; *f=?0;b=:YQ==:", "2"]).unwrap(),
            [
                vec!["a", "b", "", "c", "1"],
                vec!["\"d,;\\\"\""],
                vec!["e", "*f", "?0", "b", ":YQ==:"],
                vec!["2"],
            ]
        );
    }

    #[test]
    fn accepts_exactly_the_grammar_of_structured_fields() {
        let good = r#"
            a  *  A/b:c  a!#$%&'*+-.^_`|~:/1  ""  "a"  "\\\""  "~"  0  00  -0  -1
            123456789012345  -123456789012345  0.0  -0.123  123456789012.123  ?0  ?1  ::  :YQ==:  :+/aZ09=:
            @0  @-1  @123456789012345  %""  %"%c3%bc;"  x;a  x;a;b;a  x;*  x;*a_-.*1=1  x;a=";b=1,"
            x;a=b;c=1.5  a,b  a,b;c,1  1;a  "a";b
        "#;
        let bad = r#"
            ,  a,  ,a  a,,b  a,,  a;  a;;b  a;b;  a;B  a;1  a;_a  a;-  a;a=  a;=1  a=1  a==  (a)  ()  a;b=()
            /a  !a  _a  'a'  a"b"  "  "a  "a\"  "\a"  "\  +1  -  --1  .5  5.  -.5  1.2345  1.1.1  1e3  1a
            1234567890123456  1234567890123.1  ?  ?2  ?true  ?00  :  :YQ  :Y-Q:  :Y:Q:
            @  @-  @a  @1.5  @1234567890123456  %  %a  %"  %"%  %"%0"  %"%A0"  %"%g0"  %"a\""  a;b=%
            {}  [a]  =  ;  ;a  \
        "#;
        for text in good.split_whitespace() {
            assert!(list(&[text]).is_some(), "{text}");
            assert!(list(&[&format!("x;a={text}, {text};a=1 ,x")]).is_some(), "{text}");
        }
        let spaced = ["a b", "a ;b", "a;\tb", "a; b =1", "a;b= 1", "\"\t\"", "%\"\t\"", "1 2"];
        for text in bad.split_whitespace().chain(spaced) {
            assert_eq!(list(&[text]), None, "{text}");
            assert_eq!(list(&["x", text]), None, "{text}");
        }
    }

    #[test]
    fn parses_values_as_names_and_natural_numbers() {
        for (value, expected) in
            [("a", Some("a")), ("*", Some("*")), ("\"a\"", Some("a")), ("\"\"", Some(""))]
        {
            assert_eq!(name(value), expected, "{value}");
        }
        for value in ["", "1", "-1", "1.5", "?1", "@1", ":YQ==:", "%\"a\""] {
            assert_eq!(name(value), None, "{value}");
        }
        for (value, expected) in
            [("0", 0), ("-0", 0), ("-00", 0), ("007", 7), ("999999999999999", 999_999_999_999_999)]
        {
            assert_eq!(natural(value), Some(expected), "{value}");
        }
        for value in ["", "a", "\"1\"", "-1", "1.0", "?1", "@1", ":1:"] {
            assert_eq!(natural(value), None, "{value}");
        }
    }
}
