//! Finds the references of a crate's public items to items of other crates.

use std::collections::BTreeSet;

use serde_json::Value;

/// A public item's reference to an item of another crate.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    /// The name of the crate that the public item refers to.
    pub(crate) from: String,
    pub(crate) path: String,
    /// The name and the file of the public item.
    pub(crate) item: String,
    pub(crate) file: String,
}

pub(crate) fn all(api: &Value) -> BTreeSet<Reference> {
    let mut found = BTreeSet::new();
    for item in api["index"].as_object().unwrap().values().filter(|item| item["crate_id"] == 0) {
        let implementation = &item["inner"]["impl"];
        // Blanket implementations of other crates and auto traits are skipped.
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
    found: &'a mut BTreeSet<Reference>,
}

impl Walk<'_> {
    fn walk(&mut self, value: &Value) {
        match value {
            Value::Object(members) => {
                // In the JSON, a type or trait has a `path` and a re-export has a `source`. A primitive type's path has
                // no id.
                let path = members.get("path").or(members.get("source")).and_then(Value::as_str);
                if let (Some(id), Some(path)) = (members.get("id"), path) {
                    self.add_item(id, path);
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

    fn add_item(&mut self, id: &Value, written: &str) {
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
            // rustdoc lists no path for some items. For these items, the first segment of the path in the source
            // names the crate.
            None => {
                self.add(written.trim_start_matches("::").split("::").next().unwrap_or_default(), written)
            }
        }
    }

    fn add(&mut self, from: &str, path: &str) {
        // The macro of pin_project_lite generates a private type `__Origin`, to implement `Unpin`.
        if !["pin_project_lite", "__Origin"].contains(&from) {
            self.found.insert(Reference {
                from: from.to_owned(),
                path: path.to_owned(),
                // In the JSON, the name of a re-export is one level deeper than other names.
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
