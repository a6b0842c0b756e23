//! One quota for all processes, kept in Redis or Valkey.

mod acquire;
mod asking;
mod desk;
mod driver;
mod kind;
mod limiter;
mod link;
mod pool;
mod question;
mod settings;
mod share;
mod shared;
#[cfg(test)]
mod tests;

pub use self::acquire::RedisAcquire;
pub use self::limiter::RedisLimiter;
pub use self::settings::Fallback;
