mod error;
mod request;
mod send_with;
mod service;

pub use self::send_with::SendWith;
pub use self::service::{Reqwest, ReqwestBody};
