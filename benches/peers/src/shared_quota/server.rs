//! Starts a redis-server for the benches, and reads its statistics.

use std::{
    collections::HashMap,
    fmt,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use redis::{Client, Cmd, FromRedisValue, aio::MultiplexedConnection};
use tokio::runtime::Runtime;

use super::{Algorithm, load::Op, redis_server::RedisServer};
use crate::{BoxError, runtime};

/// A running redis-server. Dropping this value kills the server.
pub struct Server {
    process: RedisServer,
    control: Runtime,
    connection: MultiplexedConnection,
    namespaces: AtomicU32,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("port", &self.process.port()).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts a redis-server and waits for two seconds.
    ///
    /// If the server has run for less than two seconds, the limiter counts the quota as spent, as it does after a
    /// restart.
    pub fn start() -> Result<Self, BoxError> {
        let process = RedisServer::start(&[])?;
        let control = runtime(1)?;
        let client = Client::open(process.url())?;
        let connection = control.block_on(client.get_multiplexed_async_connection())?;
        let server = Self { process, control, connection, namespaces: AtomicU32::new(0) };
        while server.info()?.get("uptime_in_seconds").is_none_or(|seconds| *seconds < 2.0) {
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    pub(super) fn url(&self) -> String {
        self.process.url()
    }

    /// Returns a unique namespace for the keys of one limiter.
    pub(super) fn new_namespace(&self) -> String {
        format!("bench-{}", self.namespaces.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn op(
        &self,
        runtime: &Runtime,
        limiter: Option<(Algorithm, u32)>,
        tasks: usize,
    ) -> Result<Op, BoxError> {
        Ok(match limiter {
            Some((algorithm, lease)) => Op::Acquire(algorithm.with_ample_quota(self, tasks, lease)?),
            None => {
                let client = Client::open(self.url())?;
                Op::Incr(runtime.block_on(client.get_multiplexed_async_connection())?)
            }
        })
    }

    fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, BoxError> {
        let mut connection = self.connection.clone();
        Ok(self.control.block_on(command.query_async(&mut connection))?)
    }

    /// Returns the numeric fields of Redis's `INFO`. The statistics of a command are `<command>.calls` and
    /// `<command>.usec`.
    pub(super) fn info(&self) -> Result<HashMap<String, f64>, BoxError> {
        let text: String = self.query(redis::cmd("INFO").arg("all"))?;
        let mut figures = HashMap::new();
        for (name, value) in text.lines().filter_map(|line| line.trim().split_once(':')) {
            if let Ok(value) = value.parse() {
                figures.insert(name.to_owned(), value);
            } else if let Some(command) = name.strip_prefix("cmdstat_") {
                let fields = value.split(',').filter_map(|field| field.split_once('='));
                for (field, value) in fields {
                    figures.insert(format!("{command}.{field}"), value.parse().unwrap_or(0.0));
                }
            }
        }
        Ok(figures)
    }

    /// Returns the memory in bytes that each key of the newest namespace uses. The keys are ordered by the length of
    /// their names.
    pub(super) fn key_sizes(&self) -> Result<Vec<f64>, BoxError> {
        let newest = self.namespaces.load(Ordering::Relaxed).saturating_sub(1);
        let mut keys: Vec<String> = self.query(redis::cmd("KEYS").arg(format!("bench-{newest}:*")))?;
        keys.sort_by_key(String::len);
        let size = |key| self.query(redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0));
        keys.iter().map(size).collect()
    }
}
