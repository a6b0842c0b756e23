//! Checks the dependencies between the crate's modules in the source text of `src`. All dependencies must have one
//! direction, and no two files may depend on each other.
//!
//! Paths, `use` declarations, re-exports and paths in `serde` attributes count as dependencies. Comments, other strings
//! and test code do not count. The check does not see the paths in a macro's expansion. It also does not see a
//! dependency through a trait if the source contains no path to the trait.

mod cycles;
mod order;
mod parser;
mod tokens;

use std::{collections::BTreeMap, fs, path::Path};

/// Maps the name of each source file, such as `src/limit/queue.rs`, to the text of the file.
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

/// Returns the path of the module in a file, such as `limit::queue` for `src/limit/queue.rs`.
fn module_of(file: &str) -> Vec<String> {
    let path = file.trim_start_matches("src/").trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/').filter(|part| *part != "lib").map(str::to_owned).collect()
}
