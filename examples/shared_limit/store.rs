use std::{io, time::Duration};

use tokio::time::Instant;
use tower_outbound::{
    BoxError,
    adapter::Store as State,
    limit::{Limiter, PermitRequest},
};

use crate::{
    fleet::{Job, questions},
    redis_server::RedisServer,
};

/// The redis of this run.
pub(crate) enum Store {
    /// Its URL.
    Yours(String),
    Own {
        server: RedisServer,
        away: bool,
    },
}

impl Store {
    pub(crate) fn find(url: Option<String>) -> io::Result<Self> {
        Ok(match url {
            Some(url) => Self::Yours(url),
            None => Self::Own { server: RedisServer::start(&[])?, away: false },
        })
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Yours(url) => url.clone(),
            Self::Own { server, .. } => server.url(),
        }
    }

    /// Without the credentials in it.
    pub(crate) fn address(&self) -> String {
        let url = self.url();
        let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        rest.rsplit('@').next().unwrap_or_default().trim_end_matches('/').to_owned()
    }

    /// Asks it once, so that nobody looks at a table of refusals.
    pub(crate) async fn check(&self, job: &Job) -> Result<(), BoxError> {
        let limiter = Job { parts: 0, ..job.clone() }.limiter()?;
        let ask = PermitRequest::new().with_deadline(Instant::now() + Duration::from_secs(3));
        // What the quota has left does not matter here.
        let _ = limiter.acquire_with(&ask).await;
        if limiter.store() == State::Shared {
            return Ok(());
        }
        Err(format!("no answer from redis at {}", self.address()).into())
    }

    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Own { .. })
    }

    pub(crate) fn is_away(&self) -> bool {
        matches!(self, Self::Own { away: true, .. })
    }

    /// Whether it is ours to kill.
    pub(crate) fn kill(&mut self) -> io::Result<bool> {
        let Self::Own { server, away } = self else { return Ok(false) };
        *away = true;
        server.kill().map(|()| true)
    }

    pub(crate) fn restart(&mut self) -> io::Result<bool> {
        let Self::Own { server, away } = self else { return Ok(false) };
        *away = false;
        server.restart().map(|()| true)
    }

    /// How many it was asked since it began; others may ask yours.
    pub(crate) fn questions(&self) -> io::Result<Option<u64>> {
        match self {
            Self::Own { server, .. } => questions(server.port()).map(Some),
            Self::Yours(_) => Ok(None),
        }
    }
}
