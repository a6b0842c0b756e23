//! Tower layers for calling other people's HTTP APIs.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod auth;
pub mod body;
pub mod call;
pub mod client;
mod clock;
pub mod error;
pub mod limit;
mod log;
pub mod policy;
pub mod preset;
mod random;
pub mod request_id;
pub mod retry;
pub mod timeout;

pub use self::auth::ApiKey;
pub use self::body::Body;
pub use self::call::Report;
pub use self::client::Client;
pub use self::error::{BoxError, Error, InvalidConfig};
pub use self::policy::{ExponentialBackoff, Jitter, Quota};
