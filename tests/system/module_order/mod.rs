//! Checks the dependencies between the crate's modules in the text of `src`: they have one direction, and no two files
//! name each other.
//!
//! A path, a `use`, a re-export and a path in a `serde` attribute count alike. Comments, other strings and test code do
//! not count. The check does not see paths that a macro expands to, nor dependencies through a trait without a path.

mod cycles;
mod order;
mod parser;
mod tokens;

use std::{collections::BTreeMap, fs, path::Path};

/// The text of each file by its name, such as `src/limit/queue.rs`.
type Sources = BTreeMap<String, String>;

fn sources() -> Sources {
    let mut sources = Sources::new();
    read_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "src", &mut sources);
    sources
}

fn read_folder(folder: &Path, name: &str, sources: &mut Sources) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), format!("{name}/{}", entry.file_name().to_string_lossy()));
        if path.is_dir() {
            read_folder(&path, &name, sources);
        } else if name.ends_with(".rs") {
            sources.insert(name, fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// Returns the module of a file: `limit::queue` for `src/limit/queue.rs`.
fn module_of(file: &str) -> Vec<String> {
    let path = file.trim_start_matches("src/").trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/').filter(|part| *part != "lib").map(str::to_owned).collect()
}
