//! The errors of this crate: [`Error`] for a call that failed, [`InvalidConfig`] for a setting that can't work.

mod call;
mod config;
mod delivery;
mod refusal;
mod rejected;

pub use self::call::Error;
pub(crate) use self::call::{Kind, Scope};
pub use self::config::InvalidConfig;
pub use self::delivery::DeliveryError;
pub use self::refusal::{Reason, Refusal};
pub(crate) use self::rejected::MaybeRejected;

/// Any error that may cross threads: what tower's own layers speak, and what an inner service may fail with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
