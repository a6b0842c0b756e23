//! Reads the remaining permits of the server's quotas from the headers of a response.

mod list;
mod quota_headers;
mod quota_name;
pub(crate) mod read;
mod rows;
mod structured_quotas;
#[cfg(test)]
mod tests;

pub use self::list::MAX_POLICIES;
pub(crate) use self::read::remaining;
#[cfg(test)]
pub(crate) use self::rows::names;
pub(in crate::policy) use self::{list::add, read::of_signal};
pub use self::{
    list::{Remaining, Unit},
    quota_headers::QuotaHeaders,
    quota_name::QuotaName,
};
