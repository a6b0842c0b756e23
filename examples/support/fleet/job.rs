use std::{env, fmt, net::SocketAddr, str::FromStr, time::Duration};

use tower_outbound::{BoxError, Quota, adapter::RedisLimiter};

/// Holds what a process of the fleet is to do, one line of it.
const VARIABLE: &str = "TOWER_OUTBOUND_FLEET";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    TokenBucket,
    SlidingWindow,
}

/// What each process does: calls the server, by so many tasks, as often as the shared quota lets it.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// The server that counts.
    pub(crate) server: SocketAddr,
    pub(crate) redis: String,
    /// What the quota belongs to.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) quota: Quota,
    /// Each process is one of so many while Redis does not answer; 0 refuses.
    pub(crate) parts: u32,
    pub(crate) tasks: usize,
}

impl Job {
    pub(crate) fn limiter(&self) -> Result<RedisLimiter, BoxError> {
        let limiter = match self.kind {
            Kind::TokenBucket => RedisLimiter::token_bucket(&self.redis, &self.name, [self.quota]),
            Kind::SlidingWindow => RedisLimiter::sliding_window(&self.redis, &self.name, [self.quota]),
        };
        let limiter = limiter?.with_namespace("tower-outbound-fleet")?.with_lease(1, Self::HOLD)?;
        Ok(if self.parts > 0 { limiter.with_fallback_share(self.parts)? } else { limiter })
    }

    /// A permit is used within this time, or not at all: a process that is put aside for longer loses those in its
    /// hand. By default it is 20 ms for a window of a second, which a machine with more to do than processors exceeds
    /// now and then.
    pub(crate) const HOLD: Duration = Duration::from_millis(50);

    /// The limiter's window: the quota's window, its margin and the hold.
    pub(crate) fn length(quota: Quota) -> Duration {
        quota.window() + quota.margin() + Self::HOLD
    }

    /// The rate that the quota allows in the long run: a bucket refills what is not its burst, a window all of it, in
    /// each [`length`](Self::length).
    pub(crate) fn rate(&self) -> f64 {
        let refilled = match self.kind {
            Kind::TokenBucket => self.quota.limit() - self.quota.burst(),
            Kind::SlidingWindow => self.quota.limit(),
        };
        f64::from(refilled) / Self::length(self.quota).as_secs_f64()
    }

    /// For the process of that number.
    pub(super) fn give(&self, number: usize, command: &mut tokio::process::Command) {
        command.env(VARIABLE, format!("{number} {self}"));
    }

    /// In a process of the fleet: its number, and its job. None in any other.
    pub(crate) fn given() -> Result<Option<(usize, Self)>, BoxError> {
        let Ok(line) = env::var(VARIABLE) else { return Ok(None) };
        let (number, job) = line.split_once(' ').ok_or("a number and a job")?;
        Ok(Some((number.parse()?, job.parse()?)))
    }
}

/// One line, without what a log should not have: it goes to the process's environment alone.
impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, redis, name, kind, quota, parts, tasks } = self;
        let (window, margin) = (quota.window().as_micros(), quota.margin().as_micros());
        let (limit, burst) = (quota.limit(), quota.burst());
        write!(f, "{server} {redis} {name} {kind:?} {limit} {window} {burst} {margin} {parts} {tasks}")
    }
}

impl FromStr for Job {
    type Err = BoxError;

    fn from_str(line: &str) -> Result<Self, BoxError> {
        let words: Vec<_> = line.split(' ').collect();
        let [server, redis, name, kind, limit, window, burst, margin, parts, tasks] = words[..] else {
            return Err("not a job".into());
        };
        let micros = |word: &str| word.parse().map(Duration::from_micros);
        let quota = Quota::new(limit.parse()?, micros(window)?)?;
        Ok(Self {
            server: server.parse()?,
            redis: redis.to_owned(),
            name: name.to_owned(),
            kind: if kind == "TokenBucket" { Kind::TokenBucket } else { Kind::SlidingWindow },
            quota: quota.with_burst(burst.parse()?)?.with_margin(micros(margin)?)?,
            parts: parts.parse()?,
            tasks: tasks.parse()?,
        })
    }
}
