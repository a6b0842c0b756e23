//! The limiter that processes share, over real redis-servers. In real time: the decisions are made on the server's clock.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod decisions;
#[path = "../../examples/support/redis_server.rs"]
mod redis_server;

use std::time::Duration;

use redis_server::RedisServer;
use tower_outbound::{
    Quota,
    adapter::{Fallback, RedisLimiter},
    limit::{Ask, Limiter, Reason, Store},
};

fn server() -> RedisServer {
    RedisServer::start(&[]).unwrap()
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
