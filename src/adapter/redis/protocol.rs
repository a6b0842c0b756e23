//! The query to the store's script and its reply.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use redis::Cmd;

use crate::policy::Quota;

/// The most permits of one query, because they determine how long the script runs.
pub(super) const MOST: u32 = 1_000;

/// Decides for all processes.
pub(super) trait Decide: Send + Sync {
    fn decide(&self, query: Query) -> Decided<'_>;
}

pub(super) type Decided<'a> = Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send + 'a>>;

/// The algorithm that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    TokenBucket,
    SlidingWindow,
}

impl Kind {
    /// The most permits of a quota that are ever available at once, and the name of that number.
    pub(super) fn most(self, quota: &Quota) -> (u32, &'static str) {
        match self {
            Self::TokenBucket => (quota.burst(), "burst"),
            Self::SlidingWindow => (quota.limit(), "limit"),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Query {
    /// The number of blocks of permits.
    pub(super) want: u32,
    /// The permits of a block, which become available together.
    pub(super) unit: u32,
    /// What the store last replied, and how long ago.
    pub(super) known: Option<(Known, Duration)>,
    /// The process used so many permits of its share.
    pub(super) back: Option<u64>,
    pub(super) pause: Duration,
    /// Discards the server limits.
    pub(super) resume: bool,
    pub(super) gates: Vec<Gate>,
}

/// Identifies the store's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) born: i64,
    pub(super) granted: i64,
}

/// The remaining permits of one of the service's policies, and for how long they apply.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gate {
    pub(super) policy: u64,
    pub(super) left: u64,
    pub(super) lasts: Duration,
}

/// Durations count from the decision.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) known: Known,
    pub(super) paused: Duration,
    /// When the next permit that was not granted becomes available.
    pub(super) free: Duration,
    /// When it can be queried, ahead of that time.
    pub(super) query_in: Duration,
    /// When permits may be used, and how many.
    pub(super) grants: Vec<(Duration, u32)>,
}

/// Why the store did not reply. Contains no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault(pub(super) String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What does not change from question to query.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) kind: Kind,
    horizon: Duration,
    holdoff: Duration,
    quiet: Duration,
    quotas: Vec<Term>,
}

/// The durations that the script uses, besides those of the quotas.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    /// How long a permit may be used after the moment for which it was granted.
    pub(super) hold: Duration,
    /// How long ahead of that moment it is granted.
    pub(super) horizon: Duration,
    /// How long other processes may still use their shares when one has come back.
    pub(super) holdoff: Duration,
    /// A process that uses its share has sent no query for longer.
    pub(super) quiet: Duration,
}

#[derive(Debug, Clone)]
struct Term {
    id: String,
    limit: u32,
    burst: u32,
    /// In µs. A grant counts for this long.
    length: u64,
    /// In ns, between two permits of the bucket.
    interval: u64,
}

impl Terms {
    pub(super) fn new(kind: Kind, quotas: &[Quota], times: Times) -> Self {
        let Times { hold, horizon, holdoff, quiet } = times;
        let mut terms: Vec<Term> = Vec::new();
        for quota in quotas {
            let window = quota.window().as_micros();
            let same = terms.iter().filter(|term| term.id.starts_with(&format!("{window}."))).count();
            // Both ends of a window count.
            let length = micros(quota.window() + quota.margin() + hold) + 1;
            let refilled = u64::from(quota.limit() - quota.burst());
            let interval = length.saturating_mul(1_000);
            let interval = if refilled == 0 { interval } else { interval.div_ceil(refilled) };
            let id = format!("{window}.{same}");
            terms.push(Term { id, limit: quota.limit(), burst: quota.burst(), length, interval });
        }
        Self { kind, horizon, holdoff, quiet, quotas: terms }
    }

    /// The longest time for which a grant counts.
    pub(super) fn longest(&self) -> Duration {
        Duration::from_micros(self.quotas.iter().map(|term| term.length).max().unwrap_or(0))
    }

    /// The shortest time between two permits of a bucket. Zero for a window, whose permits may become available together.
    pub(super) fn interval(&self) -> Duration {
        let shortest = self.quotas.iter().map(|term| term.interval).min().unwrap_or(0);
        match self.kind {
            Kind::TokenBucket => Duration::from_nanos(shortest),
            Kind::SlidingWindow => Duration::ZERO,
        }
    }

    /// The keys of one name, in one slot of a cluster.
    pub(super) fn keys(&self, tag: &str) -> Vec<String> {
        let state = match self.kind {
            Kind::TokenBucket => format!("{tag}:bucket"),
            Kind::SlidingWindow => format!("{tag}:window"),
        };
        let logs = self.quotas.iter().filter(|_| self.kind == Kind::SlidingWindow);
        let logs: Vec<_> = logs.map(|term| format!("{state}:{}", term.id)).collect();
        std::iter::once(state).chain(logs).collect()
    }

    /// Writes the arguments in the order in which the script reads them. `fresh`: the connection is new, so that the server
    /// may have lost its memory.
    pub(super) fn write(&self, command: &mut Cmd, query: &Query, fresh: bool) {
        let known = query.known.map_or([0, 0, -1], |(known, age)| {
            [known.born, known.granted, i64::try_from(age.as_micros()).unwrap_or(i64::MAX)]
        });
        command
            .arg(u8::from(self.kind == Kind::SlidingWindow))
            .arg(query.want)
            .arg(query.unit.max(1))
            .arg(micros(self.horizon))
            .arg(u8::from(fresh))
            .arg(&known)
            .arg(query.back.unwrap_or(0))
            .arg(u8::from(query.back.is_some()))
            .arg(micros(self.holdoff))
            .arg(micros(self.quiet))
            .arg(micros(query.pause))
            .arg(u8::from(query.resume))
            .arg(self.quotas.len());
        for term in &self.quotas {
            command.arg(term.limit).arg(term.burst).arg(term.length).arg(term.interval).arg(&term.id);
        }
        command.arg(query.gates.len());
        for gate in &query.gates {
            command.arg(gate.policy).arg(gate.left).arg(micros(gate.lasts));
        }
    }
}

impl Reply {
    pub(super) fn read(values: &[i64]) -> Option<Self> {
        let [born, granted, paused, free, query_in, grants @ ..] = values else { return None };
        let span = |micros: &i64| u64::try_from(*micros).ok().map(Duration::from_micros);
        let grant = |pair: &[i64]| match pair {
            [due, permits] => Some((span(due)?, u32::try_from(*permits).ok()?)),
            _ => None,
        };
        Some(Self {
            known: Known { born: *born, granted: *granted },
            paused: span(paused)?,
            free: span(free)?,
            query_in: span(query_in)?,
            grants: grants.chunks(2).map(grant).collect::<Option<_>>()?,
        })
    }
}

/// Rounded up.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}
