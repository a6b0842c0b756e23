//! A limiter whose quota several processes share through Redis or Valkey.

mod connection;
mod exchange;
mod fallback;
mod flight;
mod inner;
mod limiter;
mod permits;
mod plan;
mod protocol;
mod session;
mod setters;
mod settings;
mod telemetry;
#[cfg(test)]
mod tests;

pub use self::limiter::RedisLimiter;
pub use self::permits::Store;
#[cfg(feature = "metrics")]
pub(crate) use self::telemetry::describe as describe_metrics;
