//! Checks the direction of the dependencies between the modules of `src`, the signatures of setters, and the files that
//! CONTRIBUTING.md lists.
//!
//! A dependency is a path that starts with `crate::` outside comments and test code. clippy's `disallowed_methods`
//! keep clocks out of the modules without side effects.

use std::{fs, path::Path};

/// The modules, each after those on which it may depend. A layer may depend on no other layer.
const ORDER: &[&str] = &[
    "macros",
    "clock",
    "random",
    "config",
    "policy",
    "secret",
    "call",
    "error",
    "body",
    "headers",
    "uri",
    "uuid",
    "telemetry",
    "attempt_span",
    "auth",
    "limit",
    "retry",
    "request_id",
    "timeout",
    "transport",
    "stack",
    "client",
    "preset",
    "test_util",
    "adapter",
    "guide",
];
const LAYERS: &[&str] = &["attempt_span", "auth", "limit", "retry", "request_id", "timeout"];
/// The words that the limiter's core must not contain, so that its callers pass the time.
const IMPURE: &[&str] = &["tokio", "Mutex", "Waker", "Arc<", "Arc::", "Instant", "clock::"];

/// Calls `check` with the path, relative to `src`, and the code of each source file that contains no tests.
fn each_source(folder: &Path, name: &str, check: &mut impl FnMut(&str, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{name}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() && !name.ends_with("tests") {
            each_source(&path, &format!("{name}/"), check);
        } else if name.ends_with(".rs") && !name.contains("test") {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().lines();
            let is_text = |line: &str| line.starts_with("//") || line.starts_with("doc = ");
            let code: Vec<_> = code.filter(|line| !is_text(line.trim_start())).collect();
            check(&name, &code.join("\n"));
        }
    }
}

#[test]
fn modules_depend_only_on_earlier_modules_and_layers_on_no_other_layer() {
    let position = |module: &str| ORDER.iter().position(|other| *other == module);
    let (mut wrong, mut count) = (Vec::new(), 0);
    each_source(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut |file, code| {
        let module = file.split('/').next().unwrap().trim_end_matches(".rs");
        if module == "lib" {
            return;
        }
        let own = position(module).unwrap_or_else(|| panic!("{module} is not in the list of modules"));
        // `use crate::{a, b::C}` names several modules.
        let names = code.split("crate::").skip(1).flat_map(|rest| match rest.strip_prefix('{') {
            Some(group) => group.split(";\n").next().unwrap().split([',', '{', '}']).map(str::trim).collect(),
            None => vec![rest],
        });
        for name in names {
            let target = name.split(|char: char| !char.is_alphanumeric() && char != '_').next().unwrap();
            let Some(other) = position(target).filter(|other| *other != own) else { continue };
            count += 1;
            let between_layers = LAYERS.contains(&module) && LAYERS.contains(&target);
            // Without `::`, the name is an item of a group, such as `call` in `error::{call}`.
            if (other > own || between_layers) && name.starts_with(&format!("{target}::")) {
                wrong.push(format!("{file} depends on {target}"));
            }
        }
        for word in IMPURE.iter().filter(|word| file.starts_with("limit/core/") && code.contains(**word)) {
            wrong.push(format!("{file} contains {word}"));
        }
    });
    assert!(count > 100 && wrong.is_empty(), "{count} dependencies, wrong: {wrong:#?}");
}

/// The types whose last step, such as `client()`, returns the error of the first invalid value.
const BUILDERS: &[&str] = &["StackBuilder", "TransportConfig"];

/// Checks the rule in the documentation of `InvalidConfig`: a setter returns a `Result` only if its type is no
/// builder, and no other type keeps an error for later.
#[test]
fn setters_of_builders_return_no_result_and_other_types_keep_no_error() {
    let (mut wrong, mut count) = (Vec::new(), [0, 0]);
    each_source(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut |file, code| {
        for block in code.split("\nimpl").skip(1) {
            let head = block.split('{').next().unwrap();
            let is_builder = BUILDERS.iter().any(|builder| head.contains(builder));
            for setter in block.split("\n    pub fn with").skip(1) {
                let signature = setter.split("{\n").next().unwrap();
                let returned = signature.rsplit_once(") -> ").map_or("", |(_, returned)| returned);
                let is_result = returned.starts_with("Result<");
                count[usize::from(is_builder)] += 1;
                if is_builder && is_result {
                    wrong.push(format!("{file}: with{}", signature.split('(').next().unwrap()));
                }
            }
        }
        if code.contains(": Option<InvalidConfig>") && !file.starts_with("stack/builder/") {
            wrong.push(format!("{file} keeps an error"));
        }
    });
    assert!(count.iter().all(|count| *count > 20), "the search finds no setters: {count:?}");
    assert!(wrong.is_empty(), "these setters break the rule of `InvalidConfig`: {wrong:?}");
}

#[test]
fn life_of_a_permit_in_contributing_lists_and_draws_existing_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    let section = text.split("## Life of a permit").nth(1).unwrap().split("\n## ").next().unwrap();
    let drawing = section.split("```").nth(1).unwrap();
    let mut files = [0; 2];
    for row in section.lines().filter(|line| line.starts_with("| `src/")) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let folder = cells[1].trim_matches('`');
        for (column, cell) in cells[2..4].iter().enumerate() {
            for name in cell.split('`').skip(1).step_by(2) {
                files[column] += 1;
                assert!(root.join(folder).join(format!("{name}.rs")).is_file(), "{folder}/{name}.rs");
                assert!(drawing.contains(&format!("{name}.rs")), "the drawing lacks {name}.rs");
            }
        }
    }
    assert_eq!(files, [15, 3]);
    let words = drawing.split(|char: char| !(char.is_alphanumeric() || "_./".contains(char)));
    for name in words.filter(|word| word.ends_with(".rs")) {
        let is_file = |folder| root.join("src/limit").join(folder).join(name).is_file();
        assert!(["", "shell", "core"].into_iter().any(is_file), "{name}");
    }
}
