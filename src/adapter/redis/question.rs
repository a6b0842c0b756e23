//! What the store is asked, and what it says.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use redis::Cmd;

use super::kind::Kind;
use crate::policy::Quota;

/// The most permits of one question: how long the script runs grows with them.
pub(super) const MOST: u32 = 1_000;

/// Decides for all processes.
pub(super) trait Decide: Send + Sync {
    fn decide(&self, question: Question) -> Decided<'_>;
}

pub(super) type Decided<'a> = Pin<Box<dyn Future<Output = Result<Answer, Fault>> + Send + 'a>>;

#[derive(Debug, Clone, Default)]
pub(super) struct Question {
    /// So many blocks of permits.
    pub(super) want: u32,
    /// The permits of a block, which come free together.
    pub(super) unit: u32,
    /// What the store is known to have said last, and how long ago.
    pub(super) known: Option<(Known, Duration)>,
    /// The asker has kept to a share, and used so many permits of it.
    pub(super) back: Option<u64>,
    pub(super) pause: Duration,
    /// Forget what the service has said.
    pub(super) resume: bool,
    pub(super) gates: Vec<Gate>,
}

/// By what the store's memory is known again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) born: i64,
    pub(super) granted: i64,
}

/// The service has so many left, by this policy of its, for so long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gate {
    pub(super) policy: u64,
    pub(super) left: u64,
    pub(super) lasts: Duration,
}

/// Durations count from the moment of the decision.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) known: Known,
    pub(super) paused: Duration,
    /// When the next permit comes free that was not given.
    pub(super) free: Duration,
    /// When it can be had: ahead of its time.
    pub(super) come: Duration,
    /// When each may be used, and how many then.
    pub(super) grants: Vec<(Duration, u32)>,
}

/// Why the store has not answered. In words without a secret in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault(pub(super) String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What does not change from question to question.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) kind: Kind,
    horizon: Duration,
    holdoff: Duration,
    quiet: Duration,
    quotas: Vec<Term>,
}

/// The times that the store reckons with, beside those of the quotas.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    /// Permits are used up to so long after the moment for which they were given.
    pub(super) hold: Duration,
    /// They are given so long ahead of it.
    pub(super) horizon: Duration,
    /// How long others may go on with their shares when one has come back.
    pub(super) holdoff: Duration,
    /// Who keeps to a share was not heard of for longer.
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

    /// The shortest time between two permits of a bucket; zero for a window, whose permits may come together.
    pub(super) fn interval(&self) -> Duration {
        let shortest = self.quotas.iter().map(|term| term.interval).min().unwrap_or(0);
        match self.kind {
            Kind::TokenBucket => Duration::from_nanos(shortest),
            Kind::SlidingWindow => Duration::ZERO,
        }
    }

    /// What is kept under one name, in one slot of a cluster.
    pub(super) fn keys(&self, tag: &str) -> Vec<String> {
        let state = match self.kind {
            Kind::TokenBucket => format!("{tag}:bucket"),
            Kind::SlidingWindow => format!("{tag}:window"),
        };
        let logs = self.quotas.iter().filter(|_| self.kind == Kind::SlidingWindow);
        let logs: Vec<_> = logs.map(|term| format!("{state}:{}", term.id)).collect();
        std::iter::once(state).chain(logs).collect()
    }

    /// In the order in which the script reads them. `fresh`: nothing is known of what the server was before.
    pub(super) fn write(&self, command: &mut Cmd, question: &Question, fresh: bool) {
        let known = question.known.map_or([0, 0, -1], |(known, age)| {
            [known.born, known.granted, i64::try_from(age.as_micros()).unwrap_or(i64::MAX)]
        });
        command
            .arg(u8::from(self.kind == Kind::SlidingWindow))
            .arg(question.want)
            .arg(question.unit.max(1))
            .arg(micros(self.horizon))
            .arg(u8::from(fresh))
            .arg(&known)
            .arg(question.back.unwrap_or(0))
            .arg(u8::from(question.back.is_some()))
            .arg(micros(self.holdoff))
            .arg(micros(self.quiet))
            .arg(micros(question.pause))
            .arg(u8::from(question.resume))
            .arg(self.quotas.len());
        for term in &self.quotas {
            command.arg(term.limit).arg(term.burst).arg(term.length).arg(term.interval).arg(&term.id);
        }
        command.arg(question.gates.len());
        for gate in &question.gates {
            command.arg(gate.policy).arg(gate.left).arg(micros(gate.lasts));
        }
    }
}

impl Answer {
    pub(super) fn read(values: &[i64]) -> Option<Self> {
        let [born, granted, paused, free, come, grants @ ..] = values else { return None };
        let span = |micros: &i64| u64::try_from(*micros).ok().map(Duration::from_micros);
        let grant = |pair: &[i64]| match pair {
            [due, permits] => Some((span(due)?, u32::try_from(*permits).ok()?)),
            _ => None,
        };
        Some(Self {
            known: Known { born: *born, granted: *granted },
            paused: span(paused)?,
            free: span(free)?,
            come: span(come)?,
            grants: grants.chunks(2).map(grant).collect::<Option<_>>()?,
        })
    }
}

/// Rounded up.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}
