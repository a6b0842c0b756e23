//! What an answer says is left of the server's quotas.

mod list;
mod read;
#[cfg(test)]
mod tests;

pub use self::{
    list::{MAX_POLICIES, Remaining},
    read::remaining,
};
