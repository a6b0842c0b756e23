//! A redis-server of its own, and what it says about itself.

use std::{
    collections::HashMap,
    fmt,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use redis::{Client, Cmd, FromRedisValue, aio::MultiplexedConnection};
use tokio::runtime::Runtime;

use super::{Kind, lane::Op, redis_server::RedisServer};
use crate::{BoxError, runtime};

/// Killed when it is dropped.
pub struct Server {
    process: RedisServer,
    control: Runtime,
    connection: MultiplexedConnection,
    names: AtomicU32,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("port", &self.process.port()).finish_non_exhaustive()
    }
}

impl Server {
    /// When it has run for two seconds: of a younger one the limiter takes the quota for spent, as after a restart.
    pub fn start() -> Result<Self, BoxError> {
        let process = RedisServer::start(&[])?;
        let control = runtime(1)?;
        let client = Client::open(process.url())?;
        let connection = control.block_on(client.get_multiplexed_async_connection())?;
        let server = Self { process, control, connection, names: AtomicU32::new(0) };
        while server.info()?.get("uptime_in_seconds").is_none_or(|seconds| *seconds < 2.0) {
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    pub(super) fn url(&self) -> String {
        self.process.url()
    }

    /// Given to nobody else.
    pub(super) fn new_name(&self) -> String {
        format!("bench-{}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn op(
        &self,
        runtime: &Runtime,
        what: Option<(Kind, u32)>,
        tasks: usize,
    ) -> Result<Op, BoxError> {
        Ok(match what {
            Some((kind, lease)) => Op::Acquire(kind.plenty(self, tasks, lease)?),
            None => {
                let client = Client::open(self.url())?;
                Op::Incr(runtime.block_on(client.get_multiplexed_async_connection())?)
            }
        })
    }

    fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, BoxError> {
        let mut connection = self.connection.clone();
        Ok(self.control.block_on(command.query_async(&mut connection))?)
    }

    /// All that is a number; of what a command has cost, `command.calls` and `command.usec`.
    pub(super) fn info(&self) -> Result<HashMap<String, f64>, BoxError> {
        let text: String = self.ask(redis::cmd("INFO").arg("all"))?;
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

    /// The bytes of each key under the namespace that was given last, the shortest name first.
    pub(super) fn weights(&self) -> Result<Vec<f64>, BoxError> {
        let last = self.names.load(Ordering::Relaxed).saturating_sub(1);
        let mut keys: Vec<String> = self.ask(redis::cmd("KEYS").arg(format!("bench-{last}:*")))?;
        keys.sort_by_key(String::len);
        let weigh = |key| self.ask(redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0));
        keys.iter().map(weigh).collect()
    }
}
