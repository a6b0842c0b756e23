mod body;
mod error;
mod request;
mod service;

pub use self::body::ReqwestBody;
pub use self::service::Reqwest;
