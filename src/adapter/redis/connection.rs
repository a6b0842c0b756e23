//! The connections to the Redis server, one for each runtime. The first query of a runtime opens its connection. If the
//! connection is lost, the next query opens a new one. The redis crate's connection manager is not used, because its
//! own waits and retries would add to those of the task that queries the store.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisError, ServerErrorKind, aio::MultiplexedConnection,
};
use tokio::runtime::{Handle, Id};

use super::{
    protocol::{Decide, Decided, Known, Query, Reply},
    settings::{FLIGHT, Settings},
};
use crate::{config::InvalidConfig, error::redact};

const SCRIPT: &str = include_str!("script.lua");

/// The maximum number of idle connections. Each is to the same server, and each is of another runtime.
const MAX_IDLE: usize = 64;

/// The maximum number of cluster redirections that one query follows.
const MAX_REDIRECTIONS: u32 = 3;

/// The error codes that the redis crate does not know, but that may appear in the log.
const CODES: [&str; 7] = ["BUSY", "MISCONF", "NOAUTH", "NOREPLICAS", "OOM", "WRONGPASS", "WRONGTYPE"];

/// The types of values that the `TYPE` command may return.
const TYPES: [&str; 6] = ["hash", "list", "set", "stream", "string", "zset"];

/// The script's reply. The first two values identify the store's memory. All times after them are microseconds since
/// the script's decision. The last four values are the admitted requests, whether the quotas and the limit of requests
/// delay further permits, the store's time, and the state of each quota of another unit.
type Values = (i64, i64, u64, u64, u64, Vec<(u64, u32)>, u32, (bool, bool), i64, Vec<(u64, u64)>);

pub(super) struct Connection {
    settings: Arc<Settings>,
    keys: Vec<String>,
    /// The idle connections, at most one for each runtime. The last used one comes last.
    idle: Mutex<Vec<Open>>,
}

struct Open {
    connection: MultiplexedConnection,
    /// The hash that identifies the script. Empty if the Redis user may run scripts but not load them.
    digest: String,
    /// The runtime that drives the connection.
    runtime: Id,
}

impl Connection {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        Self { keys: settings.keys(), settings, idle: Mutex::default() }
    }

    async fn connect(&self, info: ConnectionInfo) -> Result<Open, RedisError> {
        #[cfg(feature = "rustls")]
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            // rustls panics if several crypto providers are compiled in and none is selected. This call fails if a
            // provider is already selected, so its result is ignored.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        // The task that queries the store limits the time of the whole exchange, so the connection has no timeouts.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let client = Client::open(info)?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query_async(&mut connection).await;
        Ok(Open { connection, digest: load.unwrap_or_default(), runtime: Handle::current().id() })
    }

    /// Runs the script. `fresh` tells the script that the connection is new. The server may then have restarted and
    /// lost its memory since the last query.
    async fn run(&self, open: &mut Open, query: &Query, fresh: bool) -> Result<Reply, RedisError> {
        let Open { connection, digest, .. } = open;
        let by_digest = self.command("EVALSHA", digest, query, fresh).query_async(connection).await;
        let values: Values = match by_digest {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.command("EVAL", SCRIPT, query, true).query_async(connection).await?
            }
            values => values?,
        };
        let (born, granted, paused, free, query_in, grants, admitted, (is_spent, is_full), at, units) =
            values;
        let grants = grants.into_iter().map(|(due, permits)| (Duration::from_micros(due), permits));
        Ok(Reply {
            known: Known { born, granted },
            paused: Duration::from_micros(paused),
            free: Duration::from_micros(free),
            is_spent,
            query_in: Duration::from_micros(query_in),
            grants: grants.collect(),
            admitted,
            is_full,
            at,
            units: units.into_iter().map(|(left, wait)| (left, Duration::from_micros(wait))).collect(),
        })
    }

    fn command(&self, name: &str, script: &str, query: &Query, fresh: bool) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys);
        self.settings.write(&mut command, query, fresh);
        command
    }

    async fn exchange(&self, mut query: Query) -> Result<Reply, String> {
        let home = &self.settings.info;
        let open = self.take_idle();
        let mut fresh = open.is_none();
        let mut open = match open {
            Some(open) => open,
            None => self.connect(home.clone()).await.map_err(fault)?,
        };
        let mut redirections = 0;
        let reply = loop {
            let error = match self.run(&mut open, &query, fresh).await {
                Ok(reply) => break reply,
                Err(error) => error,
            };
            let node = error.redirect_node().filter(|_| redirections < MAX_REDIRECTIONS);
            if let Some(info) = node.and_then(|(node, _)| self.at(node)) {
                redirections += 1;
                open = self.connect(info).await.map_err(fault)?;
                if error.kind() == ErrorKind::Server(ServerErrorKind::Ask) {
                    redis::cmd("ASKING").exec_async(&mut open.connection).await.map_err(fault)?;
                }
            } else if !fresh && may_be_stale(&error) {
                // The server may have been restarted or replaced. If the old server has granted permits for this query,
                // these permits are lost. If it has applied the returned amounts, they must not be returned again.
                query.updates.less.clear();
                open = self.connect(home.clone()).await.map_err(fault)?;
            } else if is_wrong_type(&error) {
                return Err(self.foreign_value(&mut open).await.unwrap_or_else(|| fault(error)));
            } else {
                return Err(fault(error));
            }
            fresh = true;
        };
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() >= MAX_IDLE {
            idle.remove(0);
        }
        idle.push(open);
        Ok(reply)
    }

    /// Takes the connection of the current runtime, because a connection only works while its own runtime is driven.
    fn take_idle(&self) -> Option<Open> {
        let runtime = Handle::current().id();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let index = idle.iter().position(|open| open.runtime == runtime)?;
        Some(idle.remove(index))
    }

    /// Finds a key that contains a value of another program, and describes that value.
    async fn foreign_value(&self, open: &mut Open) -> Option<String> {
        for (index, key) in self.keys.iter().enumerate() {
            let found: String = redis::cmd("TYPE").arg(key).query_async(&mut open.connection).await.ok()?;
            // The first key contains the state, and the other keys contain the logs and the requests in flight.
            let expected = if index == 0 || key.ends_with(FLIGHT) { "hash" } else { "list" };
            if found != "none" && found != expected {
                let found = TYPES.into_iter().find(|name| *name == found).unwrap_or("value of another type");
                return Some(format!("the key `{key}` contains a {found}, expected a {expected}"));
            }
        }
        None
    }

    /// Returns the connection info of another node of the cluster, given as `host:port`. The credentials and TLS
    /// settings stay the same.
    fn at(&self, node: &str) -> Option<ConnectionInfo> {
        let (name, number) = node.rsplit_once(':')?;
        let number = number.parse().ok()?;
        let mut addr = self.settings.info.addr().clone();
        match &mut addr {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                // A node that does not know its own address sends an empty host name.
                if !name.is_empty() {
                    name.clone_into(host);
                }
                *port = number;
            }
            _ => addr = ConnectionAddr::Tcp(name.to_owned(), number),
        }
        Some(self.settings.info.clone().set_addr(addr))
    }
}

impl Decide for Connection {
    fn decide(&self, query: Query) -> Decided<'_> {
        Box::pin(self.exchange(query))
    }
}

/// Describes the error without the server's text, because that text may repeat what the client has sent, such as a
/// password.
fn fault(error: RedisError) -> String {
    match error.kind() {
        ErrorKind::Io => redact(error).to_string(),
        // The redis crate knows this kind of error, so the code is a constant of the crate and not text of the reply.
        ErrorKind::Server(_) => format!("the server returned {}", error.code().unwrap_or("an error")),
        ErrorKind::Extension => {
            let code = CODES.iter().find(|code| error.code() == Some(**code));
            format!("the server returned {}", code.unwrap_or(&"an unknown error"))
        }
        _ => error.category().to_owned(),
    }
}

/// Parses the URL. The error never contains the password.
pub(super) fn parse(url: &str) -> Result<ConnectionInfo, InvalidConfig> {
    let field = "redis url";
    let expected = "a url such as `redis://user:password@host:6379/0`, or `rediss://` for TLS";
    let info = url.into_connection_info().map_err(|_| InvalidConfig::new(field, "***", expected))?;
    if !info.addr().is_supported() {
        let expected = "`redis://`, because TLS needs the feature `rustls`";
        return Err(InvalidConfig::new(field, info.addr().to_string(), expected));
    }
    Ok(info)
}

/// Returns whether the error may come from an outdated connection. The query may then succeed over a new connection.
fn may_be_stale(error: &RedisError) -> bool {
    let demoted = [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown].map(ErrorKind::Server);
    error.is_unrecoverable_error() || demoted.contains(&error.kind())
}

/// Returns whether the script has found a value of another type. Redis 6 states this only in the text of the error.
fn is_wrong_type(error: &RedisError) -> bool {
    let name = "WRONGTYPE";
    error.code() == Some(name) || error.detail().is_some_and(|detail| detail.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{limit::core::Rule, policy::Quota};

    fn replied(text: &str) -> RedisError {
        let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
        reply.and_then(redis::Value::extract_error).unwrap_err()
    }

    #[test]
    fn redis_error_contains_the_servers_error_code_but_none_of_its_other_text() {
        for (text, shown) in [
            ("ERR unknown command 'AUTH', with args beginning with: 's3cret'", "the server returned ERR"),
            ("NOPERM this user has no permissions to access 's3cret'", "the server returned NOPERM"),
            ("WRONGPASS invalid password s%33cret", "the server returned WRONGPASS"),
            ("s3cret s3cret", "the server returned an unknown error"),
        ] {
            assert_eq!(fault(replied(text)), shown, "{text}");
        }
        let client = RedisError::from((ErrorKind::Client, "s3cret", "s3cret".to_owned()));
        assert_eq!(fault(client), "client error");
    }

    #[test]
    fn wrong_type_is_recognised_in_the_errors_of_redis_6_and_7() {
        for (text, recognised) in [
            ("WRONGTYPE Operation against a key holding the wrong kind of value script: f1", true),
            ("ERR Error running script (call to f_1): @user_script:56: WRONGTYPE Operation", true),
            ("ERR wrong number of arguments", false),
        ] {
            assert_eq!(is_wrong_type(&replied(text)), recognised, "{text}");
        }
    }

    #[test]
    fn redis_error_states_why_the_connection_was_lost() {
        let lost = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(fault(lost.into()), "connection refused");
    }

    #[test]
    fn address_of_another_node_keeps_the_user_and_tls() {
        let quota = Quota::per_second(10).unwrap();
        for (url, node, expected) in [
            ("redis://10.0.0.1:7000", "10.0.0.2:7001", "10.0.0.2:7001"),
            ("redis://10.0.0.1:7000", "node.example.com:7001", "node.example.com:7001"),
            ("redis://10.0.0.1:7000", ":7001", "10.0.0.1:7001"),
            ("rediss://10.0.0.1:7000", "10.0.0.2:7001", "10.0.0.2:7001"),
        ] {
            let info = url.replace("//", "//user:word@").into_connection_info().unwrap();
            let settings = Settings::new(info.clone(), "key", Rule::TokenBucket, vec![quota]).unwrap();
            let other = Connection::new(Arc::new(settings)).at(node).unwrap();
            assert_eq!(other.addr().to_string(), expected);
            assert_eq!(other.redis_settings().username(), info.redis_settings().username());
            let is_tls = |info: &ConnectionInfo| matches!(info.addr(), ConnectionAddr::TcpTls { .. });
            assert_eq!(is_tls(&other), is_tls(&info));
        }
    }
}
