//! The error of an invalid configuration, and the forms in which files write values.

#[cfg(feature = "serde")]
pub(crate) mod checked;
#[cfg(feature = "serde")]
pub(crate) mod inline_key;
mod invalid_config;
pub(crate) mod text;

pub use self::invalid_config::InvalidConfig;
