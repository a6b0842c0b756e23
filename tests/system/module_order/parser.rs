//! Finds the paths that a source file names.

use super::{
    module_of,
    tokens::{Tokens, is_word},
};

/// A path in the source.
pub(super) struct PathUse {
    pub(super) line: usize,
    /// The segments of the path: from the crate's root if `in_crate` is true, otherwise as written in the source.
    pub(super) parts: Vec<String>,
    pub(super) in_crate: bool,
    /// Whether the path is in a `use` declaration.
    pub(super) imported: bool,
    /// Whether the path is in a `pub use` declaration.
    pub(super) exported: bool,
    /// The name after `as`.
    pub(super) alias: Option<String>,
}

#[derive(Default)]
pub(super) struct Parsed {
    pub(super) paths: Vec<PathUse>,
    /// The test modules that have a file of their own, as paths from the crate's root.
    pub(super) test_modules: Vec<Vec<String>>,
}

pub(super) fn parse(file: &str, text: &str) -> Parsed {
    let tokens = Tokens::of(text);
    let mut module = module_of(file);
    let mut parsed = Parsed::default();
    // `inline` holds the depth of braces outside each inline module that is still open.
    let (mut depth, mut inline, mut at) = (0_usize, Vec::new(), 0);
    while at < tokens.len() {
        let mut found = Vec::new();
        match tokens.text(at) {
            "#" if tokens.is_test_attribute(at) => {
                let end = tokens.end_of_item(at);
                let head = (at..end).take_while(|at| tokens.text(*at) != "{");
                let file = head.filter(|at| tokens.text(*at) == "mod" && tokens.text(at + 2) == ";");
                let name = file.map(|at| [module.clone(), vec![tokens.text(at + 1).to_owned()]].concat());
                parsed.test_modules.extend(name);
                at = end;
            }
            "{" => (depth, at) = (depth + 1, at + 1),
            "}" => {
                (depth, at) = (depth.saturating_sub(1), at + 1);
                if inline.last() == Some(&depth) {
                    inline.pop();
                    module.pop();
                }
            }
            "mod" if tokens.text(at + 2) == "{" => {
                module.push(tokens.text(at + 1).to_owned());
                inline.push(depth);
                at += 2;
            }
            "use" => {
                // After `pub` or `pub(crate)`.
                let exported = at > 0 && matches!(tokens.text(at - 1), "pub" | ")");
                at = read_paths(&tokens, at + 1, &[], true, &mut found);
                found.iter_mut().for_each(|path| path.exported = exported);
            }
            word if is_word(word) => at = read_paths(&tokens, at, &[], false, &mut found),
            _ => at += 1,
        }
        parsed.paths.extend(found.into_iter().filter_map(|path| resolve(path, &module)));
    }
    parsed
}

/// Adds the path that begins at the token `at` to `found`. If `import` is true, adds every path of the `use` tree that
/// begins there. `before` is the path that leads to the tree. Returns the index of the token after the path or tree.
fn read_paths(
    tokens: &Tokens,
    mut at: usize,
    before: &[String],
    import: bool,
    found: &mut Vec<PathUse>,
) -> usize {
    let line = tokens.line(at);
    let mut parts = before.to_vec();
    loop {
        at += usize::from(tokens.text(at) == "::");
        match tokens.text(at) {
            "{" if import => {
                at += 1;
                while !matches!(tokens.text(at), "}" | "") {
                    let end = read_paths(tokens, at, &parts, import, found);
                    at = end.max(at + 1);
                }
                return at + 1;
            }
            part if is_word(part) || part == "*" && import => parts.push(part.to_owned()),
            _ => break,
        }
        at += 1;
        if tokens.text(at) != "::" {
            break;
        }
    }
    let alias = (import && tokens.text(at) == "as").then(|| tokens.text(at + 1).to_owned());
    at += if alias.is_some() { 2 } else { 0 };
    if parts.len() > before.len() {
        found.push(PathUse { line, parts, in_crate: false, imported: import, exported: false, alias });
    }
    at
}

/// Rewrites a path within the crate to start at the crate's root. Leaves other paths unchanged. Returns `None` if the
/// path is only `crate` or `self` and is not imported.
fn resolve(mut path: PathUse, module: &[String]) -> Option<PathUse> {
    if path.parts.len() > 1 && path.parts.last().is_some_and(|part| part == "self") {
        path.parts.pop(); // As in `use crate::clock::{self}`.
    }
    let is_single = path.parts.len() == 1;
    let mut base = match path.parts.first()?.as_str() {
        "crate" if is_single && !path.imported => return None, // As in `pub(crate)`.
        "self" if is_single && !path.imported => return None,
        "crate" => Vec::new(),
        "self" | "super" => module.to_vec(),
        _ => return Some(path),
    };
    let rest = path.parts.iter().skip_while(|part| match part.as_str() {
        "super" => base.pop().is_some(),
        part => matches!(part, "crate" | "self"),
    });
    let rest: Vec<_> = rest.cloned().collect();
    path.parts = [base, rest].concat();
    path.in_crate = true;
    Some(path)
}
