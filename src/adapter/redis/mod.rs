//! One quota for all processes, kept in Redis or Valkey.

mod driver;
mod limiter;
mod link;
mod pool;
mod question;
mod share;
#[cfg(test)]
mod tests;

pub use self::limiter::{Fallback, RedisAcquire, RedisLimiter};
