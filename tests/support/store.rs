//! Stops and restarts the Redis server of a limiter, so that the limiter emits every log event and metric about the
//! server. Runs in real time.

#[path = "../../examples/support/redis_server.rs"]
mod redis_server;

use std::{io::ErrorKind, time::Duration};

use redis_server::RedisServer;
use tower_outbound::{
    Quota,
    adapter::RedisLimiter,
    limit::{Limiter, PermitRequest},
};

/// Returns `false` and does nothing else if redis-server is not installed. In that case, the tests of `tests/redis`
/// fail.
pub(crate) async fn lost_and_found() -> bool {
    let mut server = match RedisServer::start(&[]) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!(
                "not checked without redis-server: the log events and metrics of the Redis limiter: {error}"
            );
            return false;
        }
        started => started.unwrap(),
    };
    tokio::time::resume();
    let quota = Quota::new(100, Duration::from_millis(500)).unwrap();
    let limiter = RedisLimiter::token_bucket(&server.url(), "key", [quota]).unwrap();
    // On a busy machine, the limiter must not treat a slow server as unavailable.
    let limiter =
        limiter.with_timeout(Duration::from_secs(10)).unwrap().with_lease(1, quota.window()).unwrap();
    limiter.acquire_with(&PermitRequest::new()).await.unwrap();
    server.kill().unwrap();
    limiter.acquire_with(&PermitRequest::new()).await.unwrap_err();
    server.restart().unwrap();
    while limiter.acquire_with(&PermitRequest::new()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}
