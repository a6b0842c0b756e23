//! A limiter whose quota several processes share through Redis or Valkey.

mod connection;
mod exchange;
mod fallback;
mod inner;
mod limiter;
mod permits;
mod protocol;
mod session;
mod setters;
mod settings;
#[cfg(test)]
mod tests;

pub use self::limiter::RedisLimiter;
pub use self::permits::Store;
#[cfg(feature = "metrics")]
pub(crate) use self::session::describe as describe_metrics;
