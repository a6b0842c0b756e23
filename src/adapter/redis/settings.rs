//! What a limiter is made with, and what follows from it.

use std::{num::NonZeroU32, time::Duration};

use redis::ConnectionInfo;
use sha2::{Digest, Sha256};

use super::{
    kind::Kind,
    limiter::RedisLimiter,
    link::parse,
    question::{Terms, Times},
    share::parts,
};
use crate::{
    error::InvalidConfig,
    policy::{ExponentialBackoff, Quota},
};

/// What a process does while the store does not answer. Never unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Fallback {
    /// Refuses every request at once, as [`Reason::Unavailable`](crate::limit::Reason::Unavailable).
    #[default]
    Refuse,
    /// Keeps to its part of every quota, as one of so many processes. It begins with nothing to spend, for what the
    /// others did last is not known.
    Share(NonZeroU32),
}

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
            timeout: RedisLimiter::DEFAULT_TIMEOUT,
            fallback: Fallback::Refuse,
        })
    }

    /// The shortest window.
    pub(super) fn shortest(&self) -> Duration {
        shortest(&self.quotas).unwrap_or_default()
    }

    /// The names of the keys begin so. The part in braces places them in one slot of a cluster.
    pub(super) fn tag(&self) -> String {
        let hash = Sha256::digest(self.name.as_bytes());
        let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("{}:{{{hex}}}", self.namespace)
    }

    /// What this process keeps to, and what the store does.
    pub(super) fn plan(&self) -> Result<(Plan, Terms), InvalidConfig> {
        let Self { kind, ref quotas, lease, hold, timeout, fallback, .. } = *self;
        // Long enough that a process is never idle between two questions, short enough that it can't take what is
        // the others': a tenth of a second, where the window is not shorter than four of them.
        let horizon =
            hold.max(Duration::from_millis(100)).min(self.shortest() / 4).max(Duration::from_micros(1));
        let backoff = ExponentialBackoff::new(Duration::from_millis(100), Duration::from_millis(250))?;
        // Whoever keeps to its share asks again after the longest back-off, and learns in time that it is over. And
        // permits were given so long ahead.
        let holdoff = match fallback {
            Fallback::Refuse => horizon,
            Fallback::Share(_) => horizon.max(backoff.ceiling(u32::MAX) + timeout),
        };
        // A share gives nothing before that.
        let quiet = (timeout / 2).min(horizon + hold);
        let terms = Terms::new(kind, quotas, Times { hold, horizon, holdoff, quiet });
        let parts = match fallback {
            Fallback::Refuse => None,
            Fallback::Share(processes) => Some(parts(kind, quotas, processes)?),
        };
        let plan = Plan {
            kind,
            lease,
            hold,
            horizon,
            timeout,
            longest: terms.longest(),
            interval: terms.interval(),
            largest: kind.largest(quotas),
            holdoff,
            parts,
            backoff,
        };
        Ok((plan, terms))
    }
}

fn shortest(quotas: &[Quota]) -> Option<Duration> {
    quotas.iter().map(Quota::window).min()
}

/// What was settled when the limiter was made.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    /// The most permits taken ahead of who asks for them.
    pub(super) lease: u32,
    pub(super) hold: Duration,
    pub(super) horizon: Duration,
    pub(super) timeout: Duration,
    /// For how long a grant counts.
    pub(super) longest: Duration,
    pub(super) interval: Duration,
    pub(super) largest: u32,
    /// For so long after a failure a share is kept to, and not without another one.
    pub(super) holdoff: Duration,
    /// Kept to while the store does not answer; none refuses.
    pub(super) parts: Option<Vec<Quota>>,
    pub(super) backoff: ExponentialBackoff,
}
