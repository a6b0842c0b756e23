//! The modules of the crate depend on one another in one direction only, and no two files name each other. Reads the text
//! of `src`, so that a path, a `use`, a re-export and a string of a `serde` attribute count alike. Comments, other strings
//! and test code do not count.
//!
//! It does not see a path that a macro makes, nor what a trait's implementation reaches without a path.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// What each room may name of the crate, besides itself: whole rooms, or one item of one. A room that is not in
/// here is a failure, so that a new one has to be placed. `lib.rs` is free, and it alone names `adapter`.
const ROOMS: &[(&str, &[&[&str]])] = &[
    // The base has an order of its own: a call records the decisions of the policy, and an error holds the report of its
    // call.
    ("macros", &[]),
    ("clock", &[]),
    ("random", &[]),
    ("config", &[]),
    ("policy", &[&["config"]]),
    ("secret", &[]),
    ("call", &[&["clock", "policy", "secret"]]),
    ("error", &[&["config", "call"]]),
    ("body", &[&["error"]]),
    ("headers", &[&["error"]]),
    ("id", &[&["clock", "random"]]),
    ("telemetry", &[&["clock", "call", "error", "policy::grpc::Code"]]),
    // The layers see all of the base, and never one another.
    ("attempt_span", &[BASE]),
    ("auth", &[BASE]),
    ("limit", &[BASE]),
    ("retry", &[BASE]),
    ("request_id", &[BASE]),
    ("timeout", &[BASE]),
    // What is made of them.
    ("stack", &[BASE, LAYERS]),
    ("client", &[BASE, LAYERS, &["stack"]]),
    ("preset", &[BASE, LAYERS, &["stack", "client"]]),
    // For tests: nothing sees it.
    ("test_util", &[BASE, &["stack", "request_id"]]),
    ("adapter", &[BASE, LAYERS, &["stack", "client"]]),
    // Pages without items.
    ("guide", &[]),
];
const BASE: &[&str] =
    &["clock", "random", "config", "id", "secret", "call", "error", "policy", "body", "headers", "telemetry"];
const LAYERS: &[&str] = &["attempt_span", "auth", "limit", "retry", "request_id", "timeout"];

/// The room that only decides: of other crates it may name these, and nothing that does I/O, reads a clock or
/// draws a random number.
const PURE: &str = "policy";
const PURE_CRATES: &[&str] = &["std", "core", "alloc", "http"];
const IMPURE_STD: &[&str] = &["env", "fs", "io", "net", "os", "process", "thread"];
const IMPURE_ITEMS: &[&str] = &["now", "elapsed", "RandomState"];

#[test]
fn the_arrows_between_rooms_point_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Sources::new();
    read(&root.join("src"), "src", &mut sources);
    let crates = dependencies(&fs::read_to_string(root.join("Cargo.toml")).unwrap_or_default());
    assert!(sources.len() > 20 && crates.contains("tokio"), "{:?} {crates:?}", sources.keys());

    let rooms: BTreeSet<_> = sources.keys().filter_map(|file| module_of(file).into_iter().next()).collect();
    for (room, _) in ROOMS {
        assert!(rooms.contains(*room), "room `{room}` is in the table but not in src");
    }
    let broken = check(&sources, &crates);
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn no_two_files_name_each_other() {
    let mut sources = Sources::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "src", &mut sources);
    let found = pairs(&sources);
    assert_eq!(found, []);
}

#[test]
fn finds_planted_pairs() {
    let planted = |files: &[(&str, &str)]| {
        let files = files.iter().map(|(file, text)| (format!("src/a/{file}.rs"), (*text).to_owned()));
        pairs(&files.collect()).len()
    };
    let exports =
        ("mod", "mod one; mod two; pub use self::{one::One, two::Two}; pub(crate) const LONG: u8 = 1;");
    assert_eq!(planted(&[exports, ("one", "use super::two::Two;"), ("two", "use super::one::One;")]), 1);
    assert_eq!(planted(&[exports, ("one", "use super::Two;"), ("two", "fn f(_: crate::a::One) {}")]), 1);
    assert_eq!(planted(&[("mod", "mod one; use self::one::One;"), ("one", "use super::Two;")]), 1);
    assert_eq!(planted(&[exports, ("one", "use super::{Two, LONG};"), ("two", "use super::LONG;")]), 0);
    let attribute = r#"#[cfg_attr(x, serde(default, try_from = "super::two::Two"))] struct One;"#;
    assert_eq!(planted(&[exports, ("one", attribute), ("two", "use super::one::One;")]), 1);
    let module = r#"struct One { #[serde(with = "super::two")] field: u8 }"#;
    assert_eq!(planted(&[exports, ("one", module), ("two", "use super::one::One;")]), 1);
    let tests = "#[cfg(test)] mod tests { use super::super::one::One; }";
    assert_eq!(planted(&[exports, ("one", "use super::two::Two;"), ("two", tests)]), 0);
}

/// Returns the pairs of files that name each other. A name that a module re-exports leads to the file that defines it.
fn pairs(sources: &Sources) -> Vec<(String, String)> {
    let parsed: BTreeMap<_, _> =
        sources.iter().map(|(file, text)| (module_of(file), parse(file, text))).collect();
    let tests: Vec<_> = parsed.values().flat_map(|source| &source.test_modules).collect();
    let file_of = |mut parts: Vec<String>| {
        // No name is re-exported through more modules.
        for _ in 0..5 {
            let length = (1..=parts.len()).rev().find(|length| parsed.contains_key(&parts[..*length]))?;
            let (module, rest) = parts.split_at(length);
            let name = rest.first()?;
            let export = parsed[module].paths.iter().find(|path| {
                path.exported
                    && path.parts.len() > length
                    && path.alias.as_ref().or(path.parts.last()) == Some(name)
            });
            match export {
                Some(export) => parts = [export.parts.clone(), rest[1..].to_vec()].concat(),
                None => return Some(module.to_vec()),
            }
        }
        None
    };
    let mut arrows = BTreeSet::new();
    for (module, source) in &parsed {
        if module.is_empty() || tests.iter().any(|test| module.starts_with(test)) {
            continue;
        }
        // A re-export names its file for others.
        let named = source.paths.iter().filter(|path| path.inside && !path.exported);
        let files = named.filter_map(|path| file_of(path.parts.clone()));
        arrows.extend(files.filter(|file| file != module).map(|file| (module.clone(), file)));
    }
    let both =
        arrows.iter().filter(|(one, other)| one < other && arrows.contains(&(other.clone(), one.clone())));
    both.map(|(one, other)| (one.join("::"), other.join("::"))).collect()
}

#[test]
fn the_table_points_one_way() {
    for (at, (room, _)) in ROOMS.iter().enumerate() {
        for target in allowed(room).unwrap_or_default() {
            let target = target.split("::").next().unwrap_or_default();
            let before = ROOMS[..at].iter().any(|(earlier, _)| *earlier == target);
            assert!(before, "`{room}` may see `{target}`, which does not stand above it");
        }
    }
}

#[test]
fn what_is_planted_is_caught() {
    let caught = [
        ("src/limit/queue.rs", "use crate::retry::Retry;", "limit -> retry"),
        ("src/limit/queue.rs", "use crate::{clock, policy::{self, Quota}, auth::ApiKey};", "limit -> auth"),
        ("src/limit/queue.rs", "use {std::fmt, crate::{retry as again}};", "limit -> retry"),
        ("src/limit/queue.rs", "fn f() { let _ = crate :: timeout :: Timeout::new(); }", "limit -> timeout"),
        ("src/limit/queue.rs", "type T = Vec<crate::retry::Retry>;", "limit -> retry"),
        ("src/limit/queue.rs", "use super::super::retry;", "limit -> retry"),
        ("src/limit/queue.rs", "mod inner { use super::super::super::retry::Retry; }", "limit -> retry"),
        ("src/limit/queue.rs", "macro_rules! m { () => { $crate::retry::f() } }", "limit -> retry"),
        ("src/limit/queue.rs", "fn f(c: char) { if c == '\"' { crate::retry::f() } }", "limit -> retry"),
        ("src/limit/queue.rs", "use crate::RetryLayer;", "limit -> retry"),
        ("src/limit/queue.rs", "use crate as all;", "the crate itself"),
        ("src/limit/mod.rs", "pub use super::*;", "the crate itself"),
        ("src/limit/mod.rs", "use super::retry;", "limit -> retry"),
        ("src/limit/mod.rs", "#[cfg(test)] mod tests { } use crate::retry;", "limit -> retry"),
        ("src/limit/mod.rs", "#[cfg(not(test))] use crate::retry;", "limit -> retry"),
        ("src/limit/mod.rs", "/* /* */ */ r#\"\"# ; use crate::retry;", "limit -> retry"),
        ("src/limit/mod.rs", r#"#[serde(into = "crate::retry::Fields")] struct A;"#, "limit -> retry"),
        ("src/limit/mod.rs", r#"struct A { #[serde(with = "crate::retry")] field: u8 }"#, "limit -> retry"),
        ("src/error/call.rs", "use crate::limit::Refusal;", "error -> limit"),
        ("src/call/mod.rs", "use crate::error::Error;", "call -> error"),
        ("src/auth/key.rs", "use crate::stack::StackBuilder;", "auth -> stack"),
        ("src/stack/mod.rs", "use crate::client::Client;", "stack -> client"),
        ("src/stack/mod.rs", "use crate::preset::StackConfig;", "stack -> preset"),
        ("src/client/mod.rs", "use crate::adapter::redis;", "client -> adapter"),
        ("src/client/mod.rs", "use crate::preset::StackConfig;", "client -> preset"),
        ("src/preset/mod.rs", "use crate::adapter::redis;", "preset -> adapter"),
        ("src/client/mod.rs", "use crate::test_util::Arrivals;", "client -> test_util"),
        ("src/test_util/ids.rs", "use crate::limit::TokenBucket;", "test_util -> limit"),
        ("src/cache/mod.rs", "", "room `cache` is not in the table"),
        (
            "src/policy/quota.rs",
            "use crate::{config::InvalidConfig, error::Error};",
            "policy -> error::Error",
        ),
        ("src/policy/quota.rs", "use crate::error;", "policy -> error"),
        ("src/policy/quota.rs", "use crate::clock::Instant;", "policy -> clock::Instant"),
        ("src/policy/quota.rs", "use tokio::time::Instant;", "policy -> tokio"),
        ("src/policy/quota.rs", "use ::tokio as t;", "policy -> tokio"),
        ("src/policy/quota.rs", "fn f() { tower_layer::layer_fn(g) }", "policy -> tower_layer"),
        ("src/policy/quota.rs", "use std::{fmt, io::Read};", "policy -> std::io"),
        ("src/policy/quota.rs", "fn f() { std::thread::yield_now() }", "policy -> std::thread"),
        ("src/policy/quota.rs", "fn f(g: G) { g(SystemTime::now) }", "policy -> SystemTime::now"),
        ("src/policy/quota.rs", "fn f(then: Instant) { then.elapsed(); }", "policy -> elapsed"),
    ];
    let fine = [
        ("src/limit/queue.rs", "use crate::{clock, policy::Quota, error::Error}; use super::layer;"),
        ("src/limit/queue.rs", "// use crate::retry;\n/// [`crate::retry`]\n/* crate::retry */ fn f() {}"),
        ("src/limit/queue.rs", r##"const A: &str = "crate::retry"; const B: &str = r#" " crate::retry"#;"##),
        (
            "src/limit/queue.rs",
            r#"#[serde(rename = "retry", expecting = "struct A")] struct A; f("crate::retry");"#,
        ),
        ("src/limit/queue.rs", r#"#[doc = "crate::retry"] struct A;"#),
        ("src/limit/queue.rs", "#[cfg(test)]\n#[allow(unused)]\nmod tests { use crate::retry; }"),
        ("src/limit/queue.rs", "#[cfg(all(test, unix))] use crate::{retry}; pub(in crate::limit) fn f() {}"),
        ("src/limit/queue.rs", "pub(crate) fn f<'a>(_: &'a str) { super::retry() }"),
        ("src/limit/script.rs", "use crate::retry;"), // Test code: see `src/limit/mod.rs` below.
        ("src/lib.rs", "mod adapter; use crate::adapter; use self::retry::RetryLayer;"),
        ("src/adapter/mod.rs", "use crate::{client, stack, retry};"),
        ("src/policy/quota.rs", "use crate::InvalidConfig; use std::{fmt, time::{Instant, SystemTime}};"),
        ("src/policy/quota.rs", "fn f() { http::Method::GET; super::backoff::now; }"),
    ];
    let crates = ["tokio", "tower_layer", "http"].map(str::to_owned).into();
    let planted = |file: &str, text: &str| {
        let lib = "pub use self::{config::InvalidConfig, retry::RetryLayer};";
        let files = [("src/lib.rs", lib), ("src/limit/mod.rs", "#[cfg(test)] mod script;"), (file, text)];
        let files = files.map(|(file, text)| (file.to_owned(), text.to_owned()));
        check(&Sources::from(files), &crates)
    };
    for (file, text, arrow) in caught {
        let broken = planted(file, &format!("\n{text}"));
        assert_eq!(broken.len(), 1, "{file}: {text}: {broken:?}");
        let line = if text.is_empty() { 1 } else { 2 };
        let told = broken[0].starts_with(&format!("{file}:{line}: ")) && broken[0].contains(arrow);
        assert!(told, "{file}: {text}: expected {arrow}: {broken:?}");
    }
    for (file, text) in fine {
        assert_eq!(planted(file, text), [""; 0], "{file}: {text}");
    }
}

/// The text of each file by its name, such as `src/limit/queue.rs`.
type Sources = BTreeMap<String, String>;

fn read(folder: &Path, name: &str, sources: &mut Sources) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), format!("{name}/{}", entry.file_name().to_string_lossy()));
        if path.is_dir() {
            read(&path, &name, sources);
        } else if name.ends_with(".rs") {
            sources.insert(name, fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// The crates that Cargo.toml names as dependencies, development aside, as the code spells them.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut crates = BTreeSet::new();
    let mut listed = false;
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            let section = section.rsplit_once("dependencies").filter(|(kind, _)| !kind.ends_with("dev-"));
            listed = matches!(section, Some((_, "")));
            if let Some(name) = section.and_then(|(_, rest)| rest.strip_prefix('.')) {
                crates.insert(name.replace('-', "_"));
            }
        } else if let Some((name, _)) = line.split_once(['=', '.', ' ']).filter(|_| listed) {
            crates.insert(name.replace('-', "_"));
        }
    }
    crates
}

/// `src/limit/queue.rs` is `limit::queue`.
fn module_of(file: &str) -> Vec<String> {
    let path = file.trim_start_matches("src/").trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/').filter(|part| *part != "lib").map(str::to_owned).collect()
}

/// What a room may name, as `room` or `room::Item`; none when it is not in the table.
fn allowed(room: &str) -> Option<Vec<&'static str>> {
    ROOMS.iter().find(|(name, _)| *name == room).map(|(_, groups)| groups.concat())
}

/// A line for each arrow that points the wrong way.
fn check(sources: &Sources, crates: &BTreeSet<String>) -> Vec<String> {
    let parsed: BTreeMap<_, _> = sources.iter().map(|(file, text)| (file, parse(file, text))).collect();
    let tests: Vec<_> = parsed.values().flat_map(|source| &source.test_modules).collect();
    // What `lib.rs` re-exports belongs to the room that it comes from.
    let lib = parsed.iter().filter(|(file, _)| **file == "src/lib.rs").flat_map(|(_, source)| &source.paths);
    let re_exports: BTreeMap<_, _> = lib
        .filter(|path| path.inside && path.imported && path.parts.len() > 1)
        .map(|path| (path.alias.as_ref().or(path.parts.last()), &path.parts))
        .collect();

    let mut broken = BTreeSet::new();
    for (file, source) in &parsed {
        let module = module_of(file);
        let Some(room) = module.first() else { continue };
        if tests.iter().any(|test| module.starts_with(test)) {
            continue;
        }
        let Some(allowed) = allowed(room) else {
            broken.insert((
                *file,
                1,
                format!("room `{room}` is not in the table of tests/system/module_order.rs"),
            ));
            continue;
        };
        for path in &source.paths {
            let parts = match path.parts.first() {
                Some(first) if path.inside => re_exports.get(&Some(first)).copied().unwrap_or(&path.parts),
                _ => &path.parts,
            };
            let named = parts.join("::");
            let wrong = if !path.inside {
                (room == PURE && impure(path, crates)).then(|| format!("{room} -> {named}"))
            } else if parts.is_empty() || parts[0] == "*" {
                Some(format!("{room} -> the crate itself: name the room"))
            } else {
                let fits = |target: &str| named == target || named.starts_with(&format!("{target}::"));
                (parts[0] != *room && !allowed.iter().any(|target| fits(target)))
                    .then(|| format!("{room} -> {named}: {room} may see {allowed:?}"))
            };
            broken.extend(wrong.map(|wrong| (*file, path.line, wrong)));
        }
    }
    broken.into_iter().map(|(file, line, wrong)| format!("{file}:{line}: {wrong}")).collect()
}

/// Whether what a path or a lone name leads to is more than a decision needs.
fn impure(path: &Named, crates: &BTreeSet<String>) -> bool {
    let parts = &path.parts;
    let is = |at: usize, names: &[&str]| parts.get(at).is_some_and(|part| names.contains(&part.as_str()));
    // A lone name may be a variable's, unless it is imported.
    let leads_out = path.imported || parts.len() > 1;
    let foreign = leads_out && crates.contains(&parts[0]) && !is(0, PURE_CRATES);
    let std = is(0, &["std"]) && is(1, IMPURE_STD);
    // `now` as a method or a variable is one's own; after `::` it reads a clock.
    let item = is(parts.len() - 1, IMPURE_ITEMS) && (leads_out || !is(0, &["now"]));
    foreign || std || item
}

/// A path of the source: from the root of the crate when `inside`, otherwise as it is written.
struct Named {
    line: usize,
    parts: Vec<String>,
    inside: bool,
    /// Named in a `use`, perhaps by another name.
    imported: bool,
    /// Named in a `pub use`.
    exported: bool,
    alias: Option<String>,
}

#[derive(Default)]
struct Parsed {
    paths: Vec<Named>,
    /// The modules in files of their own that are test code, from the root of the crate.
    test_modules: Vec<Vec<String>>,
}

fn parse(file: &str, text: &str) -> Parsed {
    let tokens = Tokens::of(text);
    let mut module = module_of(file);
    let mut parsed = Parsed::default();
    // The depth of braces, and those at which an inline module ends.
    let (mut depth, mut inline, mut at) = (0_usize, Vec::new(), 0);
    while at < tokens.0.len() {
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
                // `pub`, or the end of `pub(crate)`.
                let exported = at > 0 && matches!(tokens.text(at - 1), "pub" | ")");
                at = tokens.tree(at + 1, &[], true, &mut found);
                found.iter_mut().for_each(|path| path.exported = exported);
            }
            word if is_word(word) => at = tokens.tree(at, &[], false, &mut found),
            _ => at += 1,
        }
        parsed.paths.extend(found.into_iter().filter_map(|path| resolve(path, &module)));
    }
    parsed
}

/// Leads a path from where it stands to the root of the crate, if it leads into the crate at all.
fn resolve(mut path: Named, module: &[String]) -> Option<Named> {
    if path.parts.len() > 1 && path.parts.last().is_some_and(|part| part == "self") {
        path.parts.pop(); // As in `use crate::clock::{self}`.
    }
    let lone = path.parts.len() == 1;
    let mut base = match path.parts.first()?.as_str() {
        "crate" if lone && !path.imported => return None, // As in `pub(crate)`.
        "self" if lone && !path.imported => return None,
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
    path.inside = true;
    Some(path)
}

fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first == '_' || first.is_alphabetic())
}

/// The tokens of a source and their lines, without comments, literals and lifetimes. `::` is one token. A path in a string
/// of a `serde` attribute counts as if it had no quotation marks.
struct Tokens(Vec<(usize, String)>);

impl Tokens {
    fn of(source: &str) -> Self {
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
                2 // An identifier that could be a keyword.
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

    fn text(&self, at: usize) -> &str {
        self.0.get(at).map_or("", |(_, text)| text)
    }

    /// The path, or with `import` the whole tree of a `use`, that begins at `at`; returns where it ends.
    fn tree(&self, mut at: usize, before: &[String], import: bool, found: &mut Vec<Named>) -> usize {
        let line = self.0.get(at).map_or(0, |(line, _)| *line);
        let mut parts = before.to_vec();
        loop {
            at += usize::from(self.text(at) == "::");
            match self.text(at) {
                "{" if import => {
                    at += 1;
                    while !matches!(self.text(at), "}" | "") {
                        let end = self.tree(at, &parts, import, found);
                        at = end.max(at + 1);
                    }
                    return at + 1;
                }
                part if is_word(part) || part == "*" && import => parts.push(part.to_owned()),
                _ => break,
            }
            at += 1;
            if self.text(at) != "::" {
                break;
            }
        }
        let alias = (import && self.text(at) == "as").then(|| self.text(at + 1).to_owned());
        at += if alias.is_some() { 2 } else { 0 };
        if parts.len() > before.len() {
            found.push(Named { line, parts, inside: false, imported: import, exported: false, alias });
        }
        at
    }

    /// `#[cfg(test)]`, or `test` as one of the conditions of an `all`.
    fn is_test_attribute(&self, at: usize) -> bool {
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

    /// Where the item that begins with the attribute at `at` ends: at its `;`, or with its block.
    fn end_of_item(&self, mut at: usize) -> usize {
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

/// The tokens of a string that follows `before`, if it is a path in a `serde` attribute.
fn serde_path(before: &[(usize, String)], string: &str) -> impl Iterator<Item = String> + use<> {
    let start = before.iter().rposition(|(_, text)| text == "#").unwrap_or(before.len());
    let attribute: Vec<_> = before[start..].iter().map(|(_, text)| text.as_str()).collect();
    let is_open = attribute.contains(&"[") && !attribute.contains(&"]");
    let is_serde = is_open && attribute.windows(2).any(|pair| pair == ["serde", "("]);
    let path = if is_serde && string.contains("::") { string.trim_matches('"') } else { "" };
    // `with` names the module whose functions are called.
    let function = if !path.is_empty() && attribute.ends_with(&["with", "="]) { "::serialize" } else { "" };
    Tokens::of(&format!("{path}{function}")).0.into_iter().map(|(_, text)| text)
}

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

fn string(rest: &str) -> usize {
    let mut escaped = true; // The first quotation mark opens.
    for (at, c) in rest.char_indices() {
        match c {
            '"' if !escaped => return at + 1,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    rest.len()
}

/// After `r`: as many `#` as it begins with close it, too.
fn raw_string(rest: &str) -> Option<usize> {
    let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
    let text = rest[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(text.find(&close).map_or(rest.len(), |at| hashes + 1 + at + close.len()))
}

/// A character, or a lifetime.
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
