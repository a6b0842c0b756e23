//! Reads the remaining permits of the server's quotas from the headers of a response.

mod list;
pub(crate) mod read;
#[cfg(test)]
mod tests;

#[cfg(any(test, fuzzing))]
pub use self::list::MAX_POLICIES;
pub use self::list::Remaining;
pub(crate) use self::read::remaining;
