mod error;
mod request;
mod service;

pub use self::service::{Reqwest, ReqwestBody};
