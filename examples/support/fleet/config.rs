use std::{env, fmt, net::SocketAddr, str::FromStr, time::Duration};

use tower_outbound::{BoxError, Quota, adapter::RedisLimiter};

/// The environment variable that contains the number and the configuration of a worker, in one line.
const VARIABLE: &str = "TOWER_OUTBOUND_FLEET";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    TokenBucket,
    SlidingWindow,
}

/// The configuration of the worker processes. Each worker calls the server from several tasks, as often as the shared
/// quota allows.
#[derive(Debug, Clone)]
pub(crate) struct WorkerConfig {
    /// The address of the counting server.
    pub(crate) server: SocketAddr,
    /// The URL of Redis.
    pub(crate) redis: String,
    /// The name of the shared quota.
    pub(crate) name: String,
    pub(crate) algorithm: Algorithm,
    pub(crate) quota: Quota,
    /// The fallback while Redis does not reply: each process uses the quota divided by this number. With 0, every
    /// request is refused.
    pub(crate) fallback_share: u32,
    pub(crate) tasks: usize,
}

impl WorkerConfig {
    pub(crate) fn limiter(&self) -> Result<RedisLimiter, BoxError> {
        let limiter = match self.algorithm {
            Algorithm::TokenBucket => RedisLimiter::token_bucket(&self.redis, &self.name, [self.quota]),
            Algorithm::SlidingWindow => RedisLimiter::sliding_window(&self.redis, &self.name, [self.quota]),
        };
        let limiter = limiter?.with_namespace("tower-outbound-fleet")?.with_lease(1, Self::HOLD)?;
        Ok(match self.fallback_share {
            0 => limiter,
            processes => limiter.with_fallback_share(processes)?,
        })
    }

    /// The time after which an unused permit expires.
    ///
    /// The default hold for a window of a second is 20 ms. A busy machine sometimes suspends a process for longer than
    /// 20 ms.
    pub(crate) const HOLD: Duration = Duration::from_millis(50);

    /// Returns the window that the limiter enforces: the sum of the quota's window, the margin and the hold.
    pub(crate) fn enforced_window(quota: Quota) -> Duration {
        quota.window() + quota.margin() + Self::HOLD
    }

    /// Returns the sustained rate in requests per second.
    ///
    /// In each [`enforced_window`](Self::enforced_window), a token bucket refills the limit minus the burst. A sliding
    /// window refills the whole limit.
    pub(crate) fn rate(&self) -> f64 {
        let refilled = match self.algorithm {
            Algorithm::TokenBucket => self.quota.limit() - self.quota.burst(),
            Algorithm::SlidingWindow => self.quota.limit(),
        };
        f64::from(refilled) / Self::enforced_window(self.quota).as_secs_f64()
    }

    /// Passes the configuration and the number of the worker to the process that `command` will start.
    pub(super) fn pass_to(&self, number: usize, command: &mut tokio::process::Command) {
        command.env(VARIABLE, format!("{number} {self}"));
    }

    /// Returns the number and the configuration of this worker process, or `None` in any other process.
    pub(crate) fn from_env() -> Result<Option<(usize, Self)>, BoxError> {
        let Ok(line) = env::var(VARIABLE) else { return Ok(None) };
        let (number, config) = line
            .split_once(' ')
            .ok_or("invalid worker configuration: expected a number and a configuration")?;
        Ok(Some((number.parse()?, config.parse()?)))
    }
}

/// Formats the configuration as one line for the worker's environment. Do not log this line, because it may contain the
/// password of Redis.
impl fmt::Display for WorkerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, redis, name, algorithm, quota, fallback_share, tasks } = self;
        let (window, margin) = (quota.window().as_micros(), quota.margin().as_micros());
        let (limit, burst) = (quota.limit(), quota.burst());
        write!(f, "{server} {redis} {name} {algorithm:?} {limit} {window} {burst} {margin} ")?;
        write!(f, "{fallback_share} {tasks}")
    }
}

impl FromStr for WorkerConfig {
    type Err = BoxError;

    fn from_str(line: &str) -> Result<Self, BoxError> {
        let fields: Vec<_> = line.split(' ').collect();
        let [server, redis, name, algorithm, limit, window, burst, margin, fallback_share, tasks] =
            fields[..]
        else {
            return Err("invalid worker configuration: expected ten fields".into());
        };
        let micros = |field: &str| field.parse().map(Duration::from_micros);
        let quota = Quota::new(limit.parse()?, micros(window)?)?;
        Ok(Self {
            server: server.parse()?,
            redis: redis.to_owned(),
            name: name.to_owned(),
            algorithm: if algorithm == "TokenBucket" {
                Algorithm::TokenBucket
            } else {
                Algorithm::SlidingWindow
            },
            quota: quota.with_burst(burst.parse()?)?.with_margin(micros(margin)?)?,
            fallback_share: fallback_share.parse()?,
            tasks: tasks.parse()?,
        })
    }
}
