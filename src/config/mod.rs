//! The error of an invalid configuration, and the text formats of values in configuration files.

#[cfg(feature = "serde")]
pub(crate) mod checked;
#[cfg(feature = "serde")]
pub(crate) mod inline_key;
mod invalid_config;
pub(crate) mod text;

pub use self::invalid_config::InvalidConfig;
