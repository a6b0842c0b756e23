//! Limits that the server reports in its responses.

pub(super) mod limits;
mod slow_start;
pub(super) mod unconfirmed;
