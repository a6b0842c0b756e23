//! Limits that the server reports in its responses.

mod gate;
pub(crate) mod limits;
pub(crate) mod pause;
pub(crate) mod slow_start;
pub(crate) mod unconfirmed;

pub(super) use self::gate::Reporter;
