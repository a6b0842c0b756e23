//! Limits that the server reports in its responses.

pub(in crate::limit) mod limits;
pub(in crate::limit) mod slow_start;
pub(in crate::limit) mod unconfirmed;
