//! A crate that names what it must not, to see that it is found.

use std::{fs, path::Path};

use super::{documented, named};

/// Each item is called what it shows; those of `fine` may stay.
const PLANTED: &str = r#"
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

/// Adapted, but not here.
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

const FOUND: &[&str] = &[
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
#[ignore = "documents a crate, as the one beside it; CI runs it"]
fn what_is_planted_is_found() {
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
    write("src/lib.rs", PLANTED);
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

    let named = named::all(&documented("planted-api", &root, &root.join("target"), &["--offline"]));
    let found: Vec<_> =
        named.iter().filter(|named| !named.is_allowed()).map(|named| named.item.as_str()).collect();
    for planted in FOUND {
        assert!(found.contains(planted), "{planted} is not found: {found:?}");
    }
    for fine in ["fine", "Private", "_field", "its_adapter", "Own"] {
        assert!(!found.contains(&fine), "{fine} is found: {named:#?}");
    }
}
