use std::{io, time::Duration};

use tokio::time::Instant;
use tower_outbound::{
    BoxError,
    adapter::Store as State,
    limit::{Limiter, PermitRequest},
};

use crate::{
    fleet::{WorkerConfig, script_calls},
    redis_server::RedisServer,
};

/// The Redis server that the run uses.
pub(crate) enum Store {
    /// The URL of an external Redis server that was already running.
    External(String),
    Own {
        server: RedisServer,
        down: bool,
    },
}

impl Store {
    pub(crate) fn find(url: Option<String>) -> io::Result<Self> {
        Ok(match url {
            Some(url) => Self::External(url),
            None => Self::Own { server: RedisServer::start(&[])?, down: false },
        })
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::External(url) => url.clone(),
            Self::Own { server, .. } => server.url(),
        }
    }

    /// Returns the server's address without credentials.
    pub(crate) fn address(&self) -> String {
        let url = self.url();
        let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        rest.rsplit('@').next().unwrap_or_default().trim_end_matches('/').to_owned()
    }

    /// Returns an error if Redis does not reply. Without Redis the table would show refusals only.
    pub(crate) async fn check(&self, config: &WorkerConfig) -> Result<(), BoxError> {
        let limiter = WorkerConfig { fallback_share: 0, ..config.clone() }.limiter()?;
        let request = PermitRequest::new().with_deadline(Instant::now() + Duration::from_secs(3));
        // If the quota is spent, the limiter refuses the request, which also proves that Redis replies.
        let _ = limiter.acquire_with(&request).await;
        if limiter.store() == State::Shared {
            return Ok(());
        }
        Err(format!("no reply from redis at {}", self.address()).into())
    }

    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Own { .. })
    }

    pub(crate) fn is_down(&self) -> bool {
        matches!(self, Self::Own { down: true, .. })
    }

    /// Kills the Redis server and returns `true`, or returns `false` for an external server.
    pub(crate) fn kill(&mut self) -> io::Result<bool> {
        let Self::Own { server, down } = self else { return Ok(false) };
        *down = true;
        server.kill().map(|()| true)
    }

    /// Restarts the Redis server and returns `true`, or returns `false` for an external server.
    pub(crate) fn restart(&mut self) -> io::Result<bool> {
        let Self::Own { server, down } = self else { return Ok(false) };
        *down = false;
        server.restart().map(|()| true)
    }

    /// Returns the number of scripts that the Redis server has run. Returns `None` for an external server, which may
    /// have other clients.
    pub(crate) fn script_calls(&self) -> io::Result<Option<u64>> {
        match self {
            Self::Own { server, .. } => script_calls(server.port()).map(Some),
            Self::External(_) => Ok(None),
        }
    }
}
