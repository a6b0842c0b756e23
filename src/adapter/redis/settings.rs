//! The settings of a limiter, and the plan that follows from them.

use std::time::Duration;

use redis::ConnectionInfo;
use sha2::{Digest, Sha256};

use super::{
    connection::parse,
    fallback::Fallback,
    protocol::{Kind, Terms, Times},
};
use crate::{
    config::InvalidConfig,
    policy::{ExponentialBackoff, Quota},
};

/// The longest exchange with the server, by default.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_millis(250);

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) info: ConnectionInfo,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) kind: Kind,
    pub(super) quotas: Vec<Quota>,
    pub(super) lease: u32,
    pub(super) hold: Duration,
    pub(super) timeout: Duration,
    pub(super) fallback: Fallback,
}

impl Settings {
    pub(super) fn new(url: &str, name: &str, kind: Kind, quotas: Vec<Quota>) -> Result<Self, InvalidConfig> {
        let Some(shortest) = shortest(&quotas) else {
            return Err(InvalidConfig::new(
                "quotas",
                "none",
                "at least one: without any there is nothing to share",
            ));
        };
        Ok(Self {
            info: parse(url)?,
            name: name.to_owned(),
            namespace: "tower-outbound".to_owned(),
            kind,
            quotas,
            lease: 1,
            hold: (shortest / 50).clamp(Duration::from_millis(5), Duration::from_millis(250)).min(shortest),
            timeout: DEFAULT_TIMEOUT,
            fallback: Fallback::Refuse,
        })
    }

    /// The shortest window.
    pub(super) fn shortest(&self) -> Duration {
        shortest(&self.quotas).unwrap_or_default()
    }

    /// The prefix of the keys. The part in braces places them in one slot of a cluster.
    pub(super) fn tag(&self) -> String {
        let hash = Sha256::digest(self.name.as_bytes());
        let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("{}:{{{hex}}}", self.namespace)
    }

    /// The plan of this process, and what every query contains.
    pub(super) fn plan(&self) -> Result<(Plan, Terms), InvalidConfig> {
        let Self { kind, ref quotas, lease, hold, timeout, fallback, .. } = *self;
        // Long enough that a process is never idle between two queries, short enough that it leaves permits to the others:
        // 100 ms, or a quarter of a shorter window.
        let horizon =
            hold.max(Duration::from_millis(100)).min(self.shortest() / 4).max(Duration::from_micros(1));
        let backoff = ExponentialBackoff::new(Duration::from_millis(100), Duration::from_millis(250))?;
        // A process that uses its share queries again after the longest backoff. Permits are granted a horizon ahead.
        let holdoff = match fallback {
            Fallback::Refuse => horizon,
            Fallback::Share(_) => horizon.max(backoff.ceiling(u32::MAX) + timeout),
        };
        // A share grants nothing before that.
        let quiet = (timeout / 2).min(horizon + hold);
        let terms = Terms::new(kind, quotas, Times { hold, horizon, holdoff, quiet });
        let plan = Plan {
            kind,
            lease,
            hold,
            horizon,
            timeout,
            longest: terms.longest(),
            interval: terms.interval(),
            largest: quotas.iter().map(|quota| kind.most(quota).0).min().unwrap_or(u32::MAX),
            holdoff,
            parts: fallback.parts(kind, quotas)?,
            backoff,
        };
        Ok((plan, terms))
    }
}

fn shortest(quotas: &[Quota]) -> Option<Duration> {
    quotas.iter().map(Quota::window).min()
}

/// The decisions made when the limiter was created.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    /// The most permits that are fetched ahead of requests.
    pub(super) lease: u32,
    pub(super) hold: Duration,
    pub(super) horizon: Duration,
    pub(super) timeout: Duration,
    /// How long a grant counts.
    pub(super) longest: Duration,
    pub(super) interval: Duration,
    pub(super) largest: u32,
    /// How long after a failure the share may be used.
    pub(super) holdoff: Duration,
    /// Used while the store does not reply. `None` refuses.
    pub(super) parts: Option<Vec<Quota>>,
    pub(super) backoff: ExponentialBackoff,
}
