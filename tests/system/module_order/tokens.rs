//! A small tokenizer for Rust sources.

pub(super) fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first == '_' || first.is_alphabetic())
}

/// The tokens of a source file with their line numbers. Comments, literals and lifetimes are omitted. `::` is one
/// token. A path in a string of a `serde` attribute is split into tokens as if the path had no quotation marks.
pub(super) struct Tokens(Vec<(usize, String)>);

impl Tokens {
    pub(super) fn of(source: &str) -> Self {
        let mut tokens = Vec::new();
        let (mut rest, mut line) = (source, 1);
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
            let length = if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                block_comment(rest)
            } else if first == '"' {
                let length = string(rest);
                tokens.extend(serde_path(&tokens, &rest[..length]).map(|part| (line, part)));
                length
            } else if first == '\'' {
                character(rest)
            } else if matches!(&rest[..word], "r" | "br" | "cr") && raw_string(&rest[word..]).is_some() {
                word + raw_string(&rest[word..]).unwrap_or(0)
            } else if rest.starts_with("r#") {
                2 // The prefix of a raw identifier.
            } else {
                let length = if rest.starts_with("::") { 2 } else { word.max(first.len_utf8()) };
                if !first.is_whitespace() {
                    tokens.push((line, rest[..length].to_owned()));
                }
                length
            };
            line += rest[..length].matches('\n').count();
            rest = &rest[length..];
        }
        Self(tokens)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn line(&self, at: usize) -> usize {
        self.0.get(at).map_or(0, |(line, _)| *line)
    }

    /// Returns the token at the index `at`, or an empty text after the last token.
    pub(super) fn text(&self, at: usize) -> &str {
        self.0.get(at).map_or("", |(_, text)| text)
    }

    /// Returns whether `#[cfg(test)]` or `#[cfg(all(test, …))]` begins at the token `at`.
    pub(super) fn is_test_attribute(&self, at: usize) -> bool {
        let words: Vec<_> = (at + 1..at + 5).map(|at| self.text(at)).collect();
        match words.as_slice() {
            ["[", "cfg", "(", "test"] => self.text(at + 5) == ")",
            ["[", "cfg", "(", "all"] => {
                let end = (at..self.0.len()).find(|at| self.text(*at) == "]").unwrap_or(at);
                let inner = (at..end).any(|at| matches!(self.text(at), "not" | "any"));
                !inner && (at..end).any(|at| self.text(at) == "test")
            }
            _ => false,
        }
    }

    /// Returns the index of the token after the item whose attribute begins at the token `at`. The item ends with `;`
    /// or with a block.
    pub(super) fn end_of_item(&self, mut at: usize) -> usize {
        let mut depth = 0_i32;
        while at < self.0.len() {
            let attribute = depth == 0 && self.text(at) == "]";
            match self.text(at) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            let ends = matches!(self.text(at), ";" | "}") && !attribute;
            at += 1;
            if depth < 0 || depth == 0 && ends {
                break;
            }
        }
        at
    }
}

/// If the literal `string` is a path in a `serde` attribute, returns the tokens of the path. Otherwise returns no
/// tokens. `before` contains the tokens before the literal.
fn serde_path(before: &[(usize, String)], string: &str) -> impl Iterator<Item = String> + use<> {
    let start = before.iter().rposition(|(_, text)| text == "#").unwrap_or(before.len());
    let attribute: Vec<_> = before[start..].iter().map(|(_, text)| text.as_str()).collect();
    let is_open = attribute.contains(&"[") && !attribute.contains(&"]");
    let is_serde = is_open && attribute.windows(2).any(|pair| pair == ["serde", "("]);
    let path = if is_serde && string.contains("::") { string.trim_matches('"') } else { "" };
    // A `with` attribute names a module. serde calls functions of that module, such as `serialize`.
    let function = if !path.is_empty() && attribute.ends_with(&["with", "="]) { "::serialize" } else { "" };
    Tokens::of(&format!("{path}{function}")).0.into_iter().map(|(_, text)| text)
}

/// Returns the length of the block comment that `rest` begins with.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        match rest.as_bytes().get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            Some(_) => at += 1,
            None => return rest.len(),
        }
        if depth == 0 {
            return at;
        }
    }
}

/// Returns the length of the string literal that `rest` begins with.
fn string(rest: &str) -> usize {
    let mut escaped = true; // The first quotation mark is the opening one.
    for (at, c) in rest.char_indices() {
        match c {
            '"' if !escaped => return at + 1,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    rest.len()
}

/// Returns the length of the raw string that `rest` begins with, without the prefix `r`. A raw string ends with as many
/// `#` as it begins with.
fn raw_string(rest: &str) -> Option<usize> {
    let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
    let text = rest[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(text.find(&close).map_or(rest.len(), |at| hashes + 1 + at + close.len()))
}

/// Returns the length of the character literal or lifetime that `rest` begins with.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((after, _))) => {
            let after = after + 1;
            rest[after..].find('\'').map_or(rest.len(), |at| after + at + 1)
        }
        (_, Some((at, '\''))) => at + 1,
        _ => 1 + rest[1..].find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len() - 1),
    }
}
