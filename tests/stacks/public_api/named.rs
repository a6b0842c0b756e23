//! What the public items of a crate name of other crates.

use std::collections::BTreeSet;

use serde_json::Value;

/// Something of another crate that a public item names.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Named {
    /// The crate that it is from.
    pub(crate) from: String,
    pub(crate) path: String,
    /// What names it, and the file that it stands in.
    pub(crate) item: String,
    pub(crate) file: String,
}

pub(crate) fn all(api: &Value) -> BTreeSet<Named> {
    let mut found = BTreeSet::new();
    for item in api["index"].as_object().unwrap().values().filter(|item| item["crate_id"] == 0) {
        let implementation = &item["inner"]["impl"];
        // Those that other crates make for every type, and the compiler for each, are not ours.
        if implementation["blanket_impl"].is_object() || implementation["is_synthetic"] == true {
            continue;
        }
        Walk { api, item, found: &mut found }.walk(&item["inner"]);
    }
    found
}

struct Walk<'a> {
    api: &'a Value,
    item: &'a Value,
    found: &'a mut BTreeSet<Named>,
}

impl Walk<'_> {
    fn walk(&mut self, value: &Value) {
        match value {
            Value::Object(members) => {
                // A type and a trait have a path, a re-export has a source. That of a primitive type has no id.
                let path = members.get("path").or(members.get("source")).and_then(Value::as_str);
                if let (Some(id), Some(path)) = (members.get("id"), path) {
                    self.name(id, path);
                }
                if let Some(name) = members.get("extern_crate").and_then(|other| other["name"].as_str()) {
                    self.add(name, name);
                }
                members.values().for_each(|member| self.walk(member));
            }
            Value::Array(values) => values.iter().for_each(|value| self.walk(value)),
            _ => {}
        }
    }

    fn name(&mut self, id: &Value, written: &str) {
        let path = &self.api["paths"][id.to_string()];
        match path["crate_id"].as_u64() {
            Some(0) => {}
            Some(from) => {
                let from = self.api["external_crates"][from.to_string()]["name"].as_str().unwrap();
                let parts: Vec<_> =
                    path["path"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
                self.add(from, &parts.join("::"));
            }
            None if self.api["index"][id.to_string()]["crate_id"] == 0 => {}
            // Not told where from, so by the name that is written.
            None => {
                self.add(written.trim_start_matches("::").split("::").next().unwrap_or_default(), written)
            }
        }
    }

    fn add(&mut self, from: &str, path: &str) {
        // What a macro writes to make a type `Unpin`, by a private type of that name.
        if !["pin_project_lite", "__Origin"].contains(&from) {
            self.found.insert(Named {
                from: from.to_owned(),
                path: path.to_owned(),
                // That of a re-export is in it.
                item: self.item["name"]
                    .as_str()
                    .or(self.item["inner"]["use"]["name"].as_str())
                    .unwrap_or("an implementation")
                    .to_owned(),
                file: self.item["span"]["filename"].as_str().unwrap_or_default().to_owned(),
            });
        }
    }
}
