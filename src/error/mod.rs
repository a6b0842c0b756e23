//! The errors of calls: the crate's [`Error`], the refusals of limiters, and the delivery of requests.
//!
//! ```
//! use tower_outbound::{BoxError, Error, ErrorKind};
//!
//! /// Returns whether a call failed because of the limiter. The layers of other crates may have wrapped the error.
//! fn is_limited(error: &BoxError) -> bool {
//!     Error::find_in(error.as_ref()).is_some_and(|error| error.kind() == ErrorKind::RateLimited)
//! }
//! # assert!(!is_limited(&"other".into()));
//! ```
//!
//! All layers return an [`Error`]. An error of the inner service is its `source()`. A custom inner service returns a
//! [`DeliveryError`] to state whether a request was sent, so that the retry layer can decide whether a retry is safe.
//!
//! [`Error`]: crate::Error

pub(crate) mod call;
pub(crate) mod chain;
pub(crate) mod delivery;
mod display;
pub(crate) mod kind;
mod refusal;
mod rejected;
pub(crate) mod transport;

pub(crate) use self::call::{Error, Failed};
pub(crate) use self::chain::BoxError;
pub(crate) use self::chain::redact;
#[cfg(feature = "client")]
pub(crate) use self::chain::write_causes;
pub use self::delivery::DeliveryError;
pub(crate) use self::kind::ErrorKind;
pub(crate) use self::refusal::Delay;
pub use self::refusal::{Reason, Refusal};
pub(crate) use self::rejected::{MaybeRejected, polled_after_completion, take_once};
#[cfg(feature = "client")]
pub(crate) use self::transport::{ConnectError, ConnectPhase};
#[cfg(feature = "proxy")]
pub(crate) use self::transport::{NO_COMMON_METHOD, ProxyRejection, is_rejected_by_proxy};
