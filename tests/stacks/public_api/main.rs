//! No public signature names a type of a crate that is not of the ecosystem: whoever upgrades such a crate inside this
//! one breaks nobody. Read off rustdoc's own description of the crate.

mod named;
mod planted;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use self::named::Named;

/// Whose types callers have in hand anyway.
const ECOSYSTEM: &[&str] = &[
    "std",
    "core",
    "alloc",
    "bytes",
    "http",
    "http_body",
    "http_body_util",
    "tower",
    "tower_layer",
    "tower_service",
    "tracing",
    // Defines `tracing::Level`.
    "tracing_core",
];

/// An adapter names what it adapts, behind the feature of that name: in the file or the folder of that name, nowhere else.
const ADAPTED: &[&str] = &["backoff", "reqwest"];

impl Named {
    fn is_allowed(&self) -> bool {
        match self.from.as_str() {
            from if ECOSYSTEM.contains(&from) => true,
            from if ADAPTED.contains(&from) => {
                let file =
                    Path::new(&self.file).strip_prefix("src/adapter").map(|file| file.with_extension(""));
                file.is_ok_and(|file| file.starts_with(from))
            }
            // The clock that all of the crate runs on.
            "tokio" => self.path == "tokio::time::instant::Instant",
            // The bounds of what JSON and settings are read into.
            "serde" | "serde_core" => self.path.contains("::de::") || self.path.contains("::ser::"),
            _ => false,
        }
    }
}

/// What rustdoc says of the library of that name.
fn documented(package: &str, root: &Path, target: &Path, options: &[&str]) -> Value {
    let rustdoc = Path::new(env!("CARGO_MANIFEST_DIR")).join("compilers/json-rustdoc");
    let documented = Command::new(env!("CARGO"))
        .current_dir(root)
        .env("RUSTDOC", rustdoc)
        .args(["rustdoc", "-p", package, "--lib", "--target-dir"])
        .arg(target)
        .args(options)
        // What is hidden in the manual is public all the same.
        .args(["--", "-Zunstable-options", "--output-format", "json", "--document-hidden-items"])
        .status();
    assert!(documented.unwrap().success());
    let api = fs::read(target.join(format!("doc/{}.json", package.replace('-', "_")))).unwrap();
    serde_json::from_slice(&api).unwrap()
}

#[test]
#[ignore = "documents the whole crate once more; CI runs it"]
fn the_public_api_names_no_type_of_any_other_crate() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Where this test was built, so that what `cargo doc` needs of the dependencies serves here, too.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let named = named::all(&documented("tower-outbound", &root, target, &["--locked", "--all-features"]));
    let crates: BTreeSet<_> = named.iter().map(|named| named.from.as_str()).collect();
    for expected in ["http", "http_body", "bytes", "tower_service", "reqwest", "backoff"] {
        assert!(crates.contains(expected), "{expected} is not even seen: {crates:?}");
    }
    let foreign: Vec<_> = named.iter().filter(|named| !named.is_allowed()).collect();
    assert!(foreign.is_empty(), "{foreign:#?}");
}
