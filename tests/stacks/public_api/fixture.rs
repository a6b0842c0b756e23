//! Tests the search for foreign types with a generated crate. The crate's public items use foreign types in every
//! possible way.

use std::{fs, path::Path};

use super::{references, rustdoc_json};

/// The source of the generated crate. The search must find every item that uses a foreign type outside of the module
/// `fine`. The name of such an item states how it uses the foreign type.
const LIBRARY: &str = r#"
pub mod adapter;

pub fn argument(_: &[foreign::Type]) {}
pub fn returned() -> Option<foreign::Type> { None }
pub fn opaque() -> impl foreign::Trait { foreign::Type }
pub fn taken(_: impl foreign::Trait) {}
pub fn bound<T: foreign::Trait>(_: T) {}
pub fn clause<T>(_: T) where Vec<T>: foreign::Trait {}
pub fn object(_: Box<dyn foreign::Trait>) {}
pub fn pointer(_: fn(foreign::Type)) {}
pub struct Fields { pub field: foreign::Type }
pub struct Tuple(pub foreign::Type);
pub enum Variants { Variant(foreign::Type) }
pub type Alias = foreign::Type;
pub const CONSTANT: foreign::Type = foreign::Type;
pub struct Own;
impl foreign::Trait for Own {}
impl From<foreign::Type> for Own { fn from(_: foreign::Type) -> Self { Self } }
impl Iterator for Own { type Item = foreign::Type; fn next(&mut self) -> Option<Self::Item> { None } }
pub trait Super: foreign::Trait {}
pub trait Associated { type Bounded: foreign::Trait; }
#[doc(hidden)]
pub fn hidden(_: foreign::Type) {}

pub use foreign::Type as Reexport;
#[doc(inline)]
pub use foreign::Type as Inlined;
pub use foreign::function as reexported_function;
pub use foreign::inner;
pub use foreign::glob::*;
pub extern crate foreign as whole;

/// This function uses a type of an adapted crate outside of that crate's adapter.
pub fn adapted(_: reqwest::Type) {}

pub mod fine {
    pub struct Private { _field: foreign::Type }
    pub fn fine(_: http::Type) -> Option<String> { let _ = foreign::Type; None }
    pub use http::Type;
    pub use super::Own;
    fn _private(_: foreign::Type) {}
}
"#;

const FOREIGN: &str = "
#[derive(Clone)]
pub struct Type;
pub trait Trait {}
impl Trait for Type {}
pub fn function() {}
pub mod inner {}
pub mod glob { pub struct Globbed; }
";

const EXPECTED: &[&str] = &[
    "argument",
    "returned",
    "opaque",
    "taken",
    "bound",
    "clause",
    "object",
    "pointer",
    "field",
    "0",
    "Alias",
    "CONSTANT",
    "an implementation",
    "from",
    "Item",
    "Super",
    "Bounded",
    "hidden",
    "Reexport",
    "Inlined",
    "reexported_function",
    "inner",
    "glob",
    "whole",
    "adapted",
    "other_adapter",
];

#[test]
#[ignore = "documents a generated crate; .ci/run runs it"]
fn search_finds_every_foreign_type_of_a_generated_crate() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("planted_api");
    let others = ["foreign", "http", "reqwest"];
    let dependencies = others.map(|other| format!("{other} = {{ path = \"{other}\" }}\n")).concat();
    let manifest = |name: &str| {
        format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n[workspace]\nmembers = [\".\"]\n")
    };
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("Cargo.toml", &format!("{}[dependencies]\n{dependencies}", manifest("planted-api")));
    write("src/lib.rs", LIBRARY);
    write("src/adapter/mod.rs", "pub mod reqwest;\npub mod backon;\n");
    write("src/adapter/reqwest.rs", "pub fn its_adapter(_: ::reqwest::Type) {}\n");
    write("src/adapter/backon.rs", "pub fn other_adapter(_: reqwest::Type) {}\n");
    for other in others {
        write(
            &format!("{other}/Cargo.toml"),
            &format!("[package]\nname = \"{other}\"\nedition = \"2024\"\n"),
        );
        write(&format!("{other}/src/lib.rs"), FOREIGN);
    }

    let references =
        references::all(&rustdoc_json("planted-api", &root, &root.join("target"), &["--offline"]));
    let found: Vec<_> =
        references.iter().filter(|found| !found.is_allowed()).map(|found| found.item.as_str()).collect();
    for expected in EXPECTED {
        assert!(found.contains(expected), "the search does not find the item `{expected}`: {found:?}");
    }
    for fine in ["fine", "Private", "_field", "its_adapter", "Own"] {
        assert!(!found.contains(&fine), "the search reports the allowed item `{fine}`: {references:#?}");
    }
}
