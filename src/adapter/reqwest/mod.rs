mod body;
mod error;
mod future;
mod request;
mod service;

pub use self::body::ReqwestBody;
pub use self::future::ReqwestFuture;
pub use self::service::Reqwest;
