//! The crate's [`Error`], the refusals of limiters, and the delivery of requests.

pub(crate) mod call;
pub(crate) mod chain;
mod delivery;
mod display;
pub(crate) mod kind;
mod redacted;
mod refusal;
mod rejected;
mod transport;

pub(crate) use self::call::{Error, Failed};
pub(crate) use self::chain::BoxError;
#[cfg(feature = "client")]
pub(crate) use self::chain::write_causes;
pub use self::delivery::DeliveryError;
pub(crate) use self::kind::ErrorKind;
pub(crate) use self::redacted::redact;
pub use self::refusal::{Reason, Refusal};
pub(crate) use self::rejected::{MaybeRejected, polled_after_completion};
