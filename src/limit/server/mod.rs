//! Limits that the server reports in its responses.

pub(super) mod limits;
pub(super) mod slow_start;
pub(super) mod unconfirmed;
