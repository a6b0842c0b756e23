//! The errors of this crate: [`Error`] of a call, and [`InvalidConfig`](crate::InvalidConfig) of a setting.

mod call;
mod chain;
mod delivery;
mod display;
mod kind;
mod redacted;
mod refusal;
mod rejected;
mod transport;

pub use self::call::Error;
pub(crate) use self::call::{Kind, Scope};
pub(crate) use self::chain::chain;
#[cfg(feature = "json")]
pub(crate) use self::chain::write_causes;
pub use self::delivery::DeliveryError;
pub use self::kind::ErrorKind;
pub(crate) use self::redacted::redact;
pub use self::refusal::{Reason, Refusal};
pub(crate) use self::rejected::{MaybeRejected, polled_after_completion};
#[cfg(feature = "hyper")]
pub(crate) use self::transport::{ConnectError, is_rejected};

/// Any error that may cross threads: of tower's own layers, or of an inner service.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
