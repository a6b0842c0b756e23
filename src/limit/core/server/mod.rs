//! Limits that the server reports in its responses.

pub(in crate::limit::core) mod limits;
pub(in crate::limit::core) mod pause;
pub(in crate::limit::core) mod slow_start;
pub(in crate::limit::core) mod unconfirmed;
