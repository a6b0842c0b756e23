//! What an answer says is left of the server's quotas.

mod list;
mod read;
#[cfg(test)]
mod tests;

#[cfg(any(test, fuzzing))]
pub use self::list::MAX_POLICIES;
pub use self::{list::Remaining, read::remaining};
