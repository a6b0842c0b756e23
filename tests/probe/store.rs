//! A shared limiter's store, lost and found: all that is told of it. In real time.

#[path = "../../examples/support/redis_server.rs"]
mod redis_server;

use std::time::Duration;

use redis_server::RedisServer;
use tower_outbound::{
    Quota,
    adapter::RedisLimiter,
    limit::{Ask, Limiter},
};

pub(crate) async fn lost_and_found() {
    tokio::time::resume();
    let mut server = RedisServer::start(&[]).unwrap();
    let quota = Quota::new(100, Duration::from_millis(500)).unwrap();
    let limiter = RedisLimiter::token_bucket(&server.url(), "key", [quota]).unwrap();
    // On a crowded machine no answer is to be taken for lost: only where the server is gone is there none.
    let limiter = limiter.with_timeout(Duration::from_secs(10)).unwrap().with_hold(quota.window()).unwrap();
    limiter.acquire(Ask::default()).await.unwrap();
    server.kill().unwrap();
    limiter.acquire(Ask::default()).await.unwrap_err();
    server.restart().unwrap();
    while limiter.acquire(Ask::default()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
