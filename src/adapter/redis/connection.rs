//! The connection to the server. It is opened when it is first needed, and again after it was lost. The redis crate's
//! connection manager would add its own waits and retries to those of the task that queries the store.

use std::sync::{Arc, Mutex, PoisonError};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisError, ServerErrorKind, aio::MultiplexedConnection,
};

use super::{
    protocol::{Decide, Decided, Query, Reply},
    settings::Settings,
};
use crate::config::InvalidConfig;

const SCRIPT: &str = include_str!("script.lua");

/// How many redirections of a cluster one query follows.
const MOST_MOVES: u32 = 3;

pub(super) struct Connection {
    settings: Arc<Settings>,
    keys: Vec<String>,
    open: Mutex<Option<Open>>,
}

struct Open {
    connection: MultiplexedConnection,
    digest: String,
    /// No query was sent over it yet. The server may be another one than before.
    fresh: bool,
}

impl Connection {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        Self { keys: settings.keys(&settings.tag()), settings, open: Mutex::new(None) }
    }

    async fn connect(&self, info: ConnectionInfo) -> Result<Open, RedisError> {
        provide_tls(info.addr());
        // The task bounds the whole exchange.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let client = Client::open(info)?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query_async(&mut connection).await;
        // A user that may run scripts is not always allowed to load them.
        let digest = load.unwrap_or_default();
        Ok(Open { connection, digest, fresh: true })
    }

    async fn run(&self, open: &mut Open, query: &Query) -> Result<Reply, RedisError> {
        let mut values = Err(no_script());
        if !open.digest.is_empty() {
            values = self
                .command("EVALSHA", &open.digest, query, open.fresh)
                .query_async(&mut open.connection)
                .await;
        }
        if let Err(error) = &values {
            if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) {
                values = self.command("EVAL", SCRIPT, query, true).query_async(&mut open.connection).await;
            }
        }
        let values: Vec<i64> = values?;
        open.fresh = false;
        let garbled =
            || RedisError::from((ErrorKind::UnexpectedReturnType, "the script's reply is malformed"));
        Reply::read(&values).ok_or_else(garbled)
    }

    fn command(&self, name: &str, script: &str, query: &Query, fresh: bool) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys);
        self.settings.write(&mut command, query, fresh);
        command
    }

    async fn exchange(&self, query: Query) -> Result<Reply, RedisError> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut reused = open.is_some();
        let mut open = match open {
            Some(open) => open,
            None => self.connect(self.settings.info.clone()).await?,
        };
        let mut moves = 0;
        let reply = loop {
            let error = match self.run(&mut open, &query).await {
                Ok(reply) => break reply,
                Err(error) => error,
            };
            let to = error.redirect_node().filter(|_| moves < MOST_MOVES).and_then(|(node, _)| self.at(node));
            if let Some(info) = to {
                moves += 1;
                open = self.connect(info).await?;
                if error.kind() == ErrorKind::Server(ServerErrorKind::Ask) {
                    redis::cmd("ASKING").exec_async(&mut open.connection).await?;
                }
            } else if reused && may_be_stale(&error) {
                // The server may have been restarted or replaced. If it did decide, its permits are lost.
                reused = false;
                open = self.connect(self.settings.info.clone()).await?;
            } else {
                return Err(error);
            }
        };
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(open);
        Ok(reply)
    }

    /// Another node, `host:port`, with the same credentials and the same TLS.
    fn at(&self, node: &str) -> Option<ConnectionInfo> {
        let (host, port) = node.rsplit_once(':')?;
        let port = port.parse().ok()?;
        // A node that does not know its own address omits it.
        let known = match self.settings.info.addr() {
            ConnectionAddr::Tcp(known, _) => known.as_str(),
            ConnectionAddr::TcpTls { host: known, .. } => known.as_str(),
            _ => host,
        };
        let host = if host.is_empty() { known } else { host }.to_owned();
        let addr = match self.settings.info.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Some(self.settings.info.clone().set_addr(addr))
    }

    /// The error without the password, because a server may quote what it received.
    fn fault(&self, error: &RedisError) -> String {
        let mut text = error.to_string();
        let settings = self.settings.info.redis_settings();
        if let Some(secret) = settings.password().filter(|secret| !secret.is_empty()) {
            text = text.replace(secret, "***");
        }
        text
    }
}

impl Decide for Connection {
    fn decide(&self, query: Query) -> Decided<'_> {
        Box::pin(async { self.exchange(query).await.map_err(|error| self.fault(&error)) })
    }
}

/// Parses the URL. No error contains its password.
pub(super) fn parse(url: &str) -> Result<ConnectionInfo, InvalidConfig> {
    let field = "redis url";
    let expected = "such as `redis://user:password@host:6379/0`, or `rediss://` with TLS";
    let info = url.into_connection_info().map_err(|_| InvalidConfig::new(field, "***", expected))?;
    if !info.addr().is_supported() {
        let expected = "`redis://`: without the feature `rustls` there is no TLS";
        return Err(InvalidConfig::new(field, info.addr().to_string(), expected));
    }
    Ok(info)
}

fn no_script() -> RedisError {
    (ErrorKind::Server(ServerErrorKind::NoScript), "the script is not loaded").into()
}

/// Whether a new connection may help immediately.
fn may_be_stale(error: &RedisError) -> bool {
    let demoted = [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown].map(ErrorKind::Server);
    error.is_unrecoverable_error() || demoted.contains(&error.kind())
}

/// rustls panics if several providers are compiled in and none is chosen.
#[cfg(feature = "rustls")]
fn provide_tls(addr: &ConnectionAddr) {
    let tls = matches!(addr, ConnectionAddr::TcpTls { .. });
    if tls && rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

#[cfg(not(feature = "rustls"))]
fn provide_tls(_: &ConnectionAddr) {}
