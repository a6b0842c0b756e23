//! Reads the remaining permits of the server's quotas from the headers of a response.

mod list;
mod quota_headers;
mod quota_name;
pub(crate) mod read;
mod rows;
mod structured_quotas;
#[cfg(test)]
mod tests;

#[cfg(any(test, fuzzing))]
pub use self::list::MAX_POLICIES;
pub(crate) use self::read::{add_signal, remaining};
pub(super) use self::rows::names;
pub use self::{
    list::{Remaining, Unit},
    quota_headers::QuotaHeaders,
    quota_name::QuotaName,
};
