//! The error of an invalid configuration.

mod invalid_config;

pub use self::invalid_config::InvalidConfig;
