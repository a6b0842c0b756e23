//! Checks that public signatures use no types of other crates, except the ecosystem's base crates. Upgrading any other
//! dependency is then no breaking change. The test reads rustdoc's JSON description of the crate.

mod references;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use self::references::Reference;

/// The crates whose types every user of this crate uses anyway.
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
    // `tracing_core` defines `Level`, which `tracing` re-exports.
    "tracing_core",
];

/// The crates whose types may appear only in their own adapter. A crate's adapter is the file or folder with the
/// crate's name in `src/adapter`.
const ADAPTED: &[&str] = &["backoff", "reqwest"];

impl Reference {
    fn is_allowed(&self) -> bool {
        match self.from.as_str() {
            from if ECOSYSTEM.contains(&from) => true,
            from if ADAPTED.contains(&from) => {
                let file =
                    Path::new(&self.file).strip_prefix("src/adapter").map(|file| file.with_extension(""));
                file.is_ok_and(|file| file.starts_with(from))
            }
            // The public API uses `tokio::time::Instant` for points in time, and tokio's traits for connections.
            "tokio" => [
                "tokio::time::instant::Instant",
                "tokio::io::async_read::AsyncRead",
                "tokio::io::async_write::AsyncWrite",
            ]
            .contains(&self.path.as_str()),
            // serde's traits are allowed as bounds of the types that are read from JSON or configuration.
            "serde" | "serde_core" => self.path.contains("::de::") || self.path.contains("::ser::"),
            _ => false,
        }
    }
}

/// Returns rustdoc's JSON description of the package's library.
fn rustdoc_json(package: &str, root: &Path, target: &Path, options: &[&str]) -> Value {
    let rustdoc = Path::new(env!("CARGO_MANIFEST_DIR")).join("compilers/json-rustdoc");
    let status = Command::new(env!("CARGO"))
        .current_dir(root)
        .env("RUSTDOC", rustdoc)
        .args(["rustdoc", "-p", package, "--lib", "--target-dir"])
        .arg(target)
        .args(options)
        // Items that are hidden from the docs are public, too.
        .args(["--", "-Zunstable-options", "--output-format", "json", "--document-hidden-items"])
        .status();
    assert!(status.unwrap().success());
    let api = fs::read(target.join(format!("doc/{}.json", package.replace('-', "_")))).unwrap();
    serde_json::from_slice(&api).unwrap()
}

#[test]
#[ignore = "documents the whole crate; .ci/run slow runs it"]
fn public_api_uses_types_of_ecosystem_crates_only() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    // The test uses the workspace's target folder, so that the metadata of the dependencies is reused.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let references =
        references::all(&rustdoc_json("tower-outbound", &root, target, &["--locked", "--all-features"]));
    let crates: BTreeSet<_> = references.iter().map(|reference| reference.from.as_str()).collect();
    for expected in ["http", "http_body", "bytes", "tower_service", "reqwest", "backoff"] {
        assert!(
            crates.contains(expected),
            "the search found no reference to the crate {expected}: {crates:?}"
        );
    }
    let foreign: Vec<_> = references.iter().filter(|reference| !reference.is_allowed()).collect();
    assert!(foreign.is_empty(), "{foreign:#?}");
}
