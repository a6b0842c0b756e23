//! No public signature names a type of a crate that is not of the ecosystem: whoever upgrades such a crate inside this
//! one breaks nobody. Read off rustdoc's own description of the crate.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use serde_json::Value;

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
    "tower_http",
    "tower_layer",
    "tower_service",
    "tracing",
    // The clock that all of the crate runs on; `Instant` alone.
    "tokio",
    // The bounds of what JSON and settings are read into; its traits alone.
    "serde",
    "serde_core",
];

/// An adapter names what it adapts, behind the feature of that name.
const ADAPTED: &[&str] = &["backoff", "backon", "reqwest"];

#[test]
#[ignore = "documents the whole crate once more; CI runs it"]
fn the_public_api_names_no_type_of_any_other_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("public_api");
    let documented = Command::new(env!("CARGO"))
        .current_dir(root)
        // The form of what it writes is not settled, and so unknown to a stable compiler that was not told this.
        .env("RUSTC_BOOTSTRAP", "1")
        .args(["rustdoc", "--locked", "-p", "tower-outbound", "--lib", "--all-features", "--target-dir"])
        .arg(&target)
        .args(["--", "-Zunstable-options", "--output-format", "json"])
        .status();
    assert!(documented.unwrap().success());
    let api = fs::read(target.join("doc/tower_outbound.json")).unwrap();
    let api: Value = serde_json::from_slice(&api).unwrap();

    let named = Named { api: &api, found: BTreeSet::new() }.of_all();
    let crates: BTreeSet<_> = named.iter().map(|(name, _, _)| name.as_str()).collect();
    for expected in ["http", "http_body", "bytes", "tower_service", "reqwest"] {
        assert!(crates.contains(expected), "{expected} is not even seen: {crates:?}");
    }
    let allowed = |name: &str| ECOSYSTEM.contains(&name) || ADAPTED.contains(&name);
    let foreign: Vec<_> = named.iter().filter(|(name, _, _)| !allowed(name)).collect();
    assert!(foreign.is_empty(), "{foreign:#?}");
    for (name, path, item) in named {
        let known = match name.as_str() {
            "tokio" => path == "tokio::time::instant::Instant",
            "serde" | "serde_core" => path.contains("::de::") || path.contains("::ser::"),
            _ => true,
        };
        assert!(known, "{path} in {item}");
    }
}

struct Named<'a> {
    api: &'a Value,
    /// The crate, the path, and the item that names it.
    found: BTreeSet<(String, String, String)>,
}

impl Named<'_> {
    fn of_all(mut self) -> BTreeSet<(String, String, String)> {
        for item in self.api["index"].as_object().unwrap().values().filter(|item| item["crate_id"] == 0) {
            let implementation = &item["inner"]["impl"];
            // Those that other crates make for every type, and the compiler for each, are not ours.
            if implementation["blanket_impl"].is_object() || implementation["is_synthetic"] == true {
                continue;
            }
            let name = item["name"].as_str().unwrap_or("an implementation").to_owned();
            self.walk(&item["inner"], &name);
        }
        self.found
    }

    fn walk(&mut self, value: &Value, item: &str) {
        match value {
            Value::Object(members) => {
                if let (Some(id), true) = (members.get("id"), members.contains_key("path")) {
                    self.name(id, item);
                }
                members.values().for_each(|member| self.walk(member, item));
            }
            Value::Array(values) => values.iter().for_each(|value| self.walk(value, item)),
            _ => {}
        }
    }

    fn name(&mut self, id: &Value, item: &str) {
        let path = &self.api["paths"][id.to_string()];
        let from = path["crate_id"].as_u64().unwrap_or(0);
        if from == 0 {
            return;
        }
        let name = self.api["external_crates"][from.to_string()]["name"].as_str().unwrap().to_owned();
        let parts: Vec<_> = path["path"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        // What a macro writes to make a type `Unpin`.
        if name != "pin_project_lite" {
            self.found.insert((name, parts.join("::"), item.to_owned()));
        }
    }
}
