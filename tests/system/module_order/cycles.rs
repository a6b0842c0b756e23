//! Checks that no two source files depend on each other.

use std::collections::{BTreeMap, BTreeSet};

use super::{Sources, module_of, parser::parse, sources};

#[test]
fn no_two_source_files_depend_on_each_other() {
    assert_eq!(mutual_pairs(&sources()), []);
}

/// Returns the pairs of files that depend on each other. The use of a re-exported name is a dependency on the file that
/// defines the name.
fn mutual_pairs(sources: &Sources) -> Vec<(String, String)> {
    let parsed: BTreeMap<_, _> =
        sources.iter().map(|(file, text)| (module_of(file), parse(file, text))).collect();
    let tests: Vec<_> = parsed.values().flat_map(|source| &source.test_modules).collect();
    let file_of = |mut parts: Vec<String>| {
        // Five rounds are enough, because every name is re-exported through fewer than five modules.
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
    let mut dependencies = BTreeSet::new();
    for (module, source) in &parsed {
        if module.is_empty() || tests.iter().any(|test| module.starts_with(test)) {
            continue;
        }
        // A re-export is not counted as a dependency of the module that contains it.
        let named = source.paths.iter().filter(|path| path.in_crate && !path.exported);
        let files = named.filter_map(|path| file_of(path.parts.clone()));
        dependencies.extend(files.filter(|file| file != module).map(|file| (module.clone(), file)));
    }
    let mutual = dependencies
        .iter()
        .filter(|(one, other)| one < other && dependencies.contains(&(other.clone(), one.clone())));
    mutual.map(|(one, other)| (one.join("::"), other.join("::"))).collect()
}

#[test]
fn cycle_check_finds_mutual_dependencies_in_sample_sources() {
    let count_pairs = |files: &[(&str, &str)]| {
        let files = files.iter().map(|(file, text)| (format!("src/a/{file}.rs"), (*text).to_owned()));
        mutual_pairs(&files.collect()).len()
    };
    let exports =
        ("mod", "mod one; mod two; pub use self::{one::One, two::Two}; pub(crate) const LONG: u8 = 1;");
    assert_eq!(count_pairs(&[exports, ("one", "use super::two::Two;"), ("two", "use super::one::One;")]), 1);
    assert_eq!(count_pairs(&[exports, ("one", "use super::Two;"), ("two", "fn f(_: crate::a::One) {}")]), 1);
    assert_eq!(count_pairs(&[("mod", "mod one; use self::one::One;"), ("one", "use super::Two;")]), 1);
    assert_eq!(count_pairs(&[exports, ("one", "use super::{Two, LONG};"), ("two", "use super::LONG;")]), 0);
    let attribute = r#"#[cfg_attr(x, serde(default, try_from = "super::two::Two"))] struct One;"#;
    assert_eq!(count_pairs(&[exports, ("one", attribute), ("two", "use super::one::One;")]), 1);
    let module = r#"struct One { #[serde(with = "super::two")] field: u8 }"#;
    assert_eq!(count_pairs(&[exports, ("one", module), ("two", "use super::one::One;")]), 1);
    let tests = "#[cfg(test)] mod tests { use super::super::one::One; }";
    assert_eq!(count_pairs(&[exports, ("one", "use super::two::Two;"), ("two", tests)]), 0);
}
