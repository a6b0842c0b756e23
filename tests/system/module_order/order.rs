//! Checks that the dependencies between modules have one direction.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{
    Sources, module_of,
    parser::{PathUse, parse},
    sources,
};

/// For each top-level module, the other modules and items on which it may depend. The test fails if a module is missing
/// in this list, so that the author of a new module chooses its position. `lib.rs` may depend on everything. Only
/// `lib.rs` depends on `adapter`.
const MODULES: &[(&str, &[&[&str]])] = &[
    // A base module depends only on base modules above it: `call` records the decisions of `policy`, and `error`
    // holds the report of a `call`.
    ("macros", &[]),
    ("clock", &[]),
    ("random", &[]),
    ("config", &[]),
    ("policy", &[&["config"]]),
    ("secret", &[]),
    ("call", &[&["clock", "policy", "secret"]]),
    ("error", &[&["config", "call", "policy::QuotaName", "policy::Unit"]]),
    ("body", &[&["call", "error"]]),
    ("headers", &[&["config", "error"]]),
    ("uri", &[]),
    ("uuid", &[&["clock", "random"]]),
    ("telemetry", &[&["clock", "call", "error", "policy::grpc::Code", "policy::QuotaName", "policy::Unit"]]),
    // A layer may depend on the whole base, but on no other layer.
    ("attempt_span", &[BASE]),
    ("auth", &[BASE]),
    ("limit", &[BASE]),
    ("retry", &[BASE]),
    ("request_id", &[BASE]),
    ("timeout", &[BASE]),
    // These modules combine the layers.
    ("transport", &[BASE]),
    // A builder contains the transport of its configuration.
    ("stack", &[BASE, LAYERS, &["transport::TransportConfig"]]),
    ("client", &[BASE, LAYERS, &["stack", "transport"]]),
    ("preset", &[BASE, LAYERS, &["stack", "client", "transport"]]),
    // No other module depends on the tools for tests.
    ("test_util", &[BASE, &["limit::core", "stack", "request_id"]]),
    ("adapter", &[BASE, LAYERS, &["stack", "client"]]),
    // This module contains only documentation.
    ("guide", &[]),
];
const BASE: &[&str] = &[
    "clock",
    "random",
    "config",
    "uri",
    "uuid",
    "secret",
    "call",
    "error",
    "policy",
    "body",
    "headers",
    "telemetry",
];
const LAYERS: &[&str] = &["attempt_span", "auth", "limit", "retry", "request_id", "timeout"];

/// The name of the module without side effects. The module may use the crates in [`PURE_CRATES`], but nothing that does
/// I/O, reads a clock or draws a random number.
const PURE: &str = "policy";
const PURE_CRATES: &[&str] = &["std", "core", "alloc", "http"];
const IMPURE_STD: &[&str] = &["env", "fs", "io", "net", "os", "process", "thread"];
const IMPURE_ITEMS: &[&str] = &["now", "elapsed", "RandomState"];

#[test]
fn modules_depend_only_on_modules_listed_for_them() {
    let sources = sources();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let crates = dependencies(&fs::read_to_string(manifest).unwrap_or_default());
    assert!(sources.len() > 20 && crates.contains("tokio"), "{:?} {crates:?}", sources.keys());

    let modules: BTreeSet<_> = sources.keys().filter_map(|file| module_of(file).into_iter().next()).collect();
    for (module, _) in MODULES {
        assert!(modules.contains(*module), "module `{module}` is in the table but not in src");
    }
    let violations = violations(&sources, &crates);
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

#[test]
fn modules_are_listed_after_their_dependencies() {
    for (at, (module, _)) in MODULES.iter().enumerate() {
        for target in allowed_targets(module).unwrap_or_default() {
            let target = target.split("::").next().unwrap_or_default();
            let is_earlier = MODULES[..at].iter().any(|(earlier, _)| *earlier == target);
            assert!(is_earlier, "`{module}` may name `{target}`, which is listed below it");
        }
    }
}

/// Returns the crates on which Cargo.toml depends, as Rust identifiers. Omits dev-dependencies.
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

/// Returns the modules and items on which a module may depend, or `None` if [`MODULES`] has no such module.
fn allowed_targets(module: &str) -> Option<Vec<&'static str>> {
    MODULES.iter().find(|(name, _)| *name == module).map(|(_, groups)| groups.concat())
}

/// Returns a message for each dependency that the table does not allow.
fn violations(sources: &Sources, crates: &BTreeSet<String>) -> Vec<String> {
    let parsed: BTreeMap<_, _> = sources.iter().map(|(file, text)| (file, parse(file, text))).collect();
    let tests: Vec<_> = parsed.values().flat_map(|source| &source.test_modules).collect();
    // If a file uses a name that `lib.rs` re-exports, it depends on the module that contains the original item.
    let lib = parsed.iter().filter(|(file, _)| **file == "src/lib.rs").flat_map(|(_, source)| &source.paths);
    let re_exports: BTreeMap<_, _> = lib
        .filter(|path| path.in_crate && path.imported && path.parts.len() > 1)
        .map(|path| (path.alias.as_ref().or(path.parts.last()), &path.parts))
        .collect();

    let mut violations = BTreeSet::new();
    for (file, source) in &parsed {
        let path = module_of(file);
        let Some(module) = path.first() else { continue };
        if tests.iter().any(|test| path.starts_with(test)) {
            continue;
        }
        let Some(allowed) = allowed_targets(module) else {
            let message =
                format!("module `{module}` is not in the table of tests/system/module_order/order.rs");
            violations.insert((*file, 1, message));
            continue;
        };
        for path in &source.paths {
            let parts = match path.parts.first() {
                Some(first) if path.in_crate => re_exports.get(&Some(first)).copied().unwrap_or(&path.parts),
                _ => &path.parts,
            };
            let target = parts.join("::");
            let message = if !path.in_crate {
                (module == PURE && is_impure(path, crates)).then(|| format!("{module} -> {target}"))
            } else if parts.is_empty() || parts[0] == "*" {
                Some(format!("{module} -> the crate itself: name a module"))
            } else {
                let is_at_or_below =
                    |allowed: &str| target == allowed || target.starts_with(&format!("{allowed}::"));
                (parts[0] != *module && !allowed.iter().any(|allowed| is_at_or_below(allowed)))
                    .then(|| format!("{module} -> {target}: {module} may name {allowed:?}"))
            };
            violations.extend(message.map(|message| (*file, path.line, message)));
        }
    }
    violations.into_iter().map(|(file, line, message)| format!("{file}:{line}: {message}")).collect()
}

/// Returns whether a path or a single name refers to something that [`PURE`] may not use.
fn is_impure(path: &PathUse, crates: &BTreeSet<String>) -> bool {
    let parts = &path.parts;
    let is = |at: usize, names: &[&str]| parts.get(at).is_some_and(|part| names.contains(&part.as_str()));
    // A single name may be a variable, unless it is imported.
    let is_path = path.imported || parts.len() > 1;
    let foreign = is_path && crates.contains(&parts[0]) && !is(0, PURE_CRATES);
    let std = is(0, &["std"]) && is(1, IMPURE_STD);
    // A single `now` is a local method or variable. `now` after `::` reads a clock.
    let item = is(parts.len() - 1, IMPURE_ITEMS) && (is_path || !is(0, &["now"]));
    foreign || std || item
}

#[test]
fn module_order_check_finds_violations_in_sample_sources() {
    let forbidden = [
        ("src/limit/queue.rs", "use crate::retry::Retry;", "limit -> retry"),
        ("src/limit/queue.rs", "use crate::{clock, policy::{self, Quota}, auth::ApiKey};", "limit -> auth"),
        ("src/limit/queue.rs", "use {std::fmt, crate::{retry as other}};", "limit -> retry"),
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
        ("src/test_util/ids.rs", "use crate::limit::LocalLimiter;", "test_util -> limit"),
        ("src/cache/mod.rs", "", "module `cache` is not in the table"),
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
    let allowed = [
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
        ("src/limit/script.rs", "use crate::retry;"), // `src/limit/mod.rs` below declares it as test code.
        ("src/lib.rs", "mod adapter; use crate::adapter; use self::retry::RetryLayer;"),
        ("src/adapter/mod.rs", "use crate::{client, stack, retry};"),
        ("src/policy/quota.rs", "use crate::InvalidConfig; use std::{fmt, time::{Instant, SystemTime}};"),
        ("src/policy/quota.rs", "fn f() { http::Method::GET; super::backoff::now; }"),
    ];
    let crates = ["tokio", "tower_layer", "http"].map(str::to_owned).into();
    let violations_in = |file: &str, text: &str| {
        let lib = "pub use self::{config::InvalidConfig, retry::RetryLayer};";
        let files = [("src/lib.rs", lib), ("src/limit/mod.rs", "#[cfg(test)] mod script;"), (file, text)];
        let files = files.map(|(file, text)| (file.to_owned(), text.to_owned()));
        violations(&Sources::from(files), &crates)
    };
    for (file, text, dependency) in forbidden {
        let found = violations_in(file, &format!("\n{text}"));
        assert_eq!(found.len(), 1, "{file}: {text}: {found:?}");
        let line = if text.is_empty() { 1 } else { 2 };
        let is_expected = found[0].starts_with(&format!("{file}:{line}: ")) && found[0].contains(dependency);
        assert!(is_expected, "{file}: {text}: expected {dependency}: {found:?}");
    }
    for (file, text) in allowed {
        assert_eq!(violations_in(file, text), [""; 0], "{file}: {text}");
    }
}
