//! What configuration is made of: the error of an invalid value, and the forms in which files write values.

#[cfg(feature = "serde")]
pub(crate) mod inline_key;
mod invalid_config;
pub(crate) mod text;

pub use self::invalid_config::InvalidConfig;
